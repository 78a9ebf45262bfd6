"""``python -m boost_ext``: the command ``boost-ext``, for launchers that start Python."""

from boost_ext.cli.commands import main

main()
