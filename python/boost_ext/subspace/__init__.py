"""The basis of a subspace: from checkpoints to a matrix in a file. The public names are in boost_ext.pca."""
