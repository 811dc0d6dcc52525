"""EncNet's test protocol step by step, one window at a time; numpy but for the network. Shares nothing with ordnet."""

import math

import numpy as np
import torch

BLACK = -np.array([0.485, 0.456, 0.406]) / np.array([0.229, 0.224, 0.225])


def aligned(x, height, width):
    """Bilinear, the corners' pixels staying where they are: (C, h, w) → (C, height, width)."""
    for axis, size in ((1, height), (2, width)):
        old = x.shape[axis]
        places = [i * (old - 1) / (size - 1) if size > 1 else 0.0 for i in range(size)]
        lower = [min(int(p), old - 1) for p in places]
        upper = [min(i + 1, old - 1) for i in lower]
        share = np.array([p - i for p, i in zip(places, lower, strict=True)])
        share = share[:, None] if axis == 1 else share
        x = x.take(lower, axis) * (1 - share) + x.take(upper, axis) * share
    return x


def logits(net, x):
    with torch.no_grad():
        return net(torch.from_numpy(x.copy())[None])[0].numpy()


def padded(x, height, width):
    canvas = np.empty((3, max(height, x.shape[1]), max(width, x.shape[2])))
    canvas[:] = BLACK[:, None, None]
    canvas[:, : x.shape[1], : x.shape[2]] = x
    return canvas


def flipped_too(net, x):
    return np.exp(logits(net, x) + logits(net, x[:, :, ::-1])[:, :, ::-1])


def sums(net, image, base, crop, scales):
    """A normalised picture (3, H, W) in float64 → summed scores (K, H, W)."""
    h, w = image.shape[1:]
    step = int(crop * 2 / 3)
    total = 0
    for scale in scales:
        long = math.ceil(base * scale)
        short = int(min(h, w) * long / max(h, w) + 0.5)
        height, width = (long, short) if h > w else (short, long)
        picture = aligned(image, height, width)
        if long <= crop:
            out = flipped_too(net, padded(picture, crop, crop))[:, :height, :width]
        else:
            picture = padded(picture, crop, crop)
            rows, columns = picture.shape[1:]
            summed, count = 0, np.zeros((rows, columns))
            for i in range(math.ceil((rows - crop) / step) + 1):
                for j in range(math.ceil((columns - crop) / step) + 1):
                    y, x = i * step, j * step
                    y1, x1 = min(y + crop, rows), min(x + crop, columns)
                    seen = flipped_too(net, padded(picture[:, y:y1, x:x1], crop, crop))
                    if isinstance(summed, int):
                        summed = np.zeros((len(seen), rows, columns))
                    summed[:, y:y1, x:x1] += seen[:, : y1 - y, : x1 - x]
                    count[y:y1, x:x1] += 1
            out = (summed / count)[:, :height, :width]
        total = total + aligned(out, h, w)
    return total
