"""Everything that trains and can be resumed: the loop, its batches, the hardware it runs on."""
