"""Convolutions on a GPU that tensor cores serve better than cuDNN has them: few channels a group, few input channels."""
