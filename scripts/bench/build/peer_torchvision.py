"""torchvision alone: JPEG decoder, resize, normalise. No text, and no patches: those are made for the check only."""

from build.peer_resize import target


class Torchvision:
    """The pixels of one picture, float32, one thread."""

    def __init__(self, spec):
        import torch
        import torchvision

        torch.set_num_threads(1)
        self.max_pixels, self.version = spec["max_pixels"], torchvision.__version__

    def sample(self, _messages, images):
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg, read_file
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as F

        picture = decode_jpeg(read_file(images[0]), ImageReadMode.RGB)
        size = target(*picture.shape[-2:], self.max_pixels)
        picture = picture[None].contiguous(memory_format=torch.channels_last)
        picture = F.resize(picture, list(size), interpolation=InterpolationMode.BICUBIC, antialias=True)
        return F.normalize(picture.to(torch.float32), [127.5] * 3, [127.5] * 3)

    @staticmethod
    def shape(out):
        return list(out.shape)

    @staticmethod
    def parts(out):
        """No ids, and the patches as the processor lays them out: 2 x 2 of them together, each frame twice."""
        _, channels, height, width = out.shape
        grid = out.reshape(channels, height // 32, 2, 16, width // 32, 2, 16).permute(1, 4, 2, 5, 0, 3, 6)
        grid = grid.reshape(-1, channels, 1, 256).expand(-1, -1, 2, -1)
        return None, grid.reshape(len(grid), -1)
