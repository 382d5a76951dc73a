"""Jobs that follow the capacity: they grow while accelerators are free, and give way to what goes first."""
