"""Hunt for failures of the compiler: generate programs, judge many in one compilation, sort what fails."""
