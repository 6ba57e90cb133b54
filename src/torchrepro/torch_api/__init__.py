"""The private names of torch, each behind one function or constant with the versions it was checked on."""
