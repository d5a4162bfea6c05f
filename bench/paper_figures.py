"""The paper's own figures, taken from the LaTeX source of its tables and plots.

The tables' source has rows of IsoH, DPSH and MCH-DPSH that are commented out: they are not in the
paper and not here. The legend of its recall and precision plots calls the second line "MCH": by its
colour, dashes and place it is KSH. F1-bucket curves stand in files that the source only names, so
there are no numbers of them.
"""

from __future__ import annotations

Values = tuple[float, ...]  # at BITS
Pair = tuple[Values, Values]  # of X and of MCH-X

BITS = (16, 32, 48, 64)
NAMES = {"coco": "MS-COCO", "nuswide": "NUS-WIDE", "mirflickr": "MIR FLICKR"}
PROTOCOL = {
    "coco": "5,000 queries, 118,287 images in the database, 10,000 of them for training",
    "nuswide": "2,100 queries (100 a class of the 21 largest), the rest of these classes in the "
    "database, 10,500 of it for training",
    "mirflickr": "5,000 queries, 20,000 images in the database, 10,000 of them for training",
}
ALL = "AlexNet, fine-tuned for the deep methods; five seeds; sigma = xi = 0.5"
PAPER: dict[str, dict[str, dict[str, Pair]]] = {
    "coco": {
        "r0": {
            "ksh": ((0.0935, 0.0436, 0.0202, 0.01454), (0.2237, 0.1446, 0.0906, 0.0808)),
            "hashnet": ((0.2665, 0.2340, 0.2204, 0.2411), (0.3810, 0.3469, 0.3344, 0.3344)),
            "adsh": ((0.2419, 0.1415, 0.1380, 0.1161), (0.3555, 0.2673, 0.2546, 0.2286)),
            "dch": ((0.4632, 0.4918, 0.5000, 0.5049), (0.4759, 0.5073, 0.5244, 0.5355)),
            "mmhh": ((0.4621, 0.4819, 0.4866, 0.4852), (0.4759, 0.5001, 0.5106, 0.5150)),
        },
        "p0": {
            "ksh": ((0.6375, 0.6108, 0.5354, 0.4842), (0.6476, 0.6594, 0.6166, 0.5805)),
            "hashnet": ((0.6617, 0.5994, 0.5475, 0.5207), (0.6656, 0.6086, 0.5588, 0.5335)),
            "adsh": ((0.6152, 0.5891, 0.5296, 0.4866), (0.6274, 0.6106, 0.5604, 0.5250)),
            "dch": ((0.6491, 0.6258, 0.6164, 0.6116), (0.6539, 0.6315, 0.6215, 0.6183)),
            "mmhh": ((0.6353, 0.6179, 0.6068, 0.6003), (0.6418, 0.6262, 0.6123, 0.6041)),
        },
        "map": {
            "ksh": ((0.5614, 0.5768, 0.5821, 0.5866), (0.5691, 0.5858, 0.5915, 0.5967)),
            "hashnet": ((0.5766, 0.5859, 0.5886, 0.5846), (0.5800, 0.5901, 0.5929, 0.5887)),
            "adsh": ((0.5643, 0.5934, 0.6055, 0.6135), (0.5684, 0.5985, 0.6098, 0.6174)),
            "dch": ((0.5542, 0.5554, 0.5550, 0.5546), (0.5607, 0.5665, 0.5650, 0.5647)),
            "mmhh": ((0.5499, 0.5498, 0.5456, 0.5442), (0.5563, 0.5597, 0.5547, 0.5492)),
        },
    },
    "nuswide": {
        "r0": {
            "ksh": ((0.1800, 0.1230, 0.1030, 0.1004), (0.2615, 0.1867, 0.1523, 0.1500)),
            "hashnet": ((0.2051, 0.1413, 0.1222, 0.1097), (0.3309, 0.2514, 0.2284, 0.2003)),
            "adsh": ((0.2585, 0.1408, 0.1054, 0.0988), (0.3801, 0.2641, 0.2083, 0.1856)),
            "dch": ((0.4053, 0.4404, 0.4706, 0.4843), (0.4433, 0.4961, 0.5305, 0.5458)),
            "mmhh": ((0.4365, 0.4571, 0.4816, 0.4884), (0.4660, 0.5308, 0.5333, 0.5464)),
        },
        "p0": {
            "ksh": ((0.7535, 0.7118, 0.6395, 0.5793), (0.7573, 0.7299, 0.6811, 0.6483)),
            "hashnet": ((0.7649, 0.6884, 0.6208, 0.5738), (0.7664, 0.7094, 0.6709, 0.6376)),
            "adsh": ((0.7755, 0.7642, 0.7216, 0.6817), (0.7751, 0.7684, 0.7394, 0.7080)),
            "dch": ((0.7469, 0.7020, 0.6780, 0.6697), (0.7452, 0.7078, 0.6893, 0.6800)),
            "mmhh": ((0.7441, 0.7111, 0.6927, 0.6894), (0.7431, 0.7183, 0.7036, 0.7010)),
        },
        "map": {
            "ksh": ((0.6894, 0.7003, 0.7047, 0.7062), (0.6955, 0.7062, 0.7104, 0.7128)),
            "hashnet": ((0.7064, 0.7184, 0.7211, 0.7225), (0.7098, 0.7221, 0.7246, 0.7266)),
            "adsh": ((0.7161, 0.7391, 0.7444, 0.7461), (0.7179, 0.7403, 0.7454, 0.7471)),
            "dch": ((0.6804, 0.6796, 0.6765, 0.6761), (0.6832, 0.6840, 0.6819, 0.6801)),
            "mmhh": ((0.6762, 0.6762, 0.6716, 0.6702), (0.6791, 0.6818, 0.6795, 0.6763)),
        },
    },
    "mirflickr": {
        "r0": {
            "ksh": ((0.0211, 0.0060, 0.0027, 0.0015), (0.0587, 0.0176, 0.0085, 0.0047)),
            "hashnet": ((0.0483, 0.0279, 0.013967, 0.0112), (0.1010, 0.0594, 0.0386, 0.0307)),
            "adsh": ((0.0704, 0.0323, 0.0220, 0.0135), (0.1527, 0.0796, 0.0518, 0.0357)),
            "dch": ((0.0829, 0.0905, 0.1098, 0.1363), (0.1528, 0.2472, 0.2930, 0.3467)),
            "mmhh": ((0.1650, 0.2263, 0.2480, 0.2867), (0.2435, 0.3969, 0.4287, 0.4589)),
        },
        "p0": {
            "ksh": ((0.8293, 0.6512, 0.4908, 0.3684), (0.8562, 0.7456, 0.6554, 0.5776)),
            "hashnet": ((0.8256, 0.6301, 0.5036, 0.4118), (0.8650, 0.7449, 0.6554, 0.5844)),
            "adsh": ((0.8669, 0.7961, 0.7317, 0.6655), (0.8731, 0.8186, 0.7783, 0.7389)),
            "dch": ((0.8679, 0.8246, 0.8099, 0.7977), (0.8800, 0.8567, 0.8433, 0.8339)),
            "mmhh": ((0.8653, 0.8342, 0.8212, 0.8173), (0.8758, 0.8498, 0.8407, 0.8319)),
        },
        "map": {
            "ksh": ((0.7923, 0.8005, 0.8024, 0.8038), (0.8051, 0.8110, 0.8117, 0.8114)),
            "hashnet": ((0.8454, 0.8515, 0.8531, 0.8540), (0.8491, 0.8553, 0.8563, 0.8573)),
            "adsh": ((0.8352, 0.8452, 0.8471, 0.8470), (0.8383, 0.8475, 0.8502, 0.8511)),
            "dch": ((0.8273, 0.8267, 0.8251, 0.8214), (0.8359, 0.8348, 0.8280, 0.8230)),
            "mmhh": ((0.8199, 0.8120, 0.8119, 0.8091), (0.8276, 0.8200, 0.8162, 0.8138)),
        },
    },
}
# mAP of the methods that learn nothing from labels.
UNSUPERVISED: dict[str, dict[str, Values]] = {
    "coco": {
        "lsh": (0.3660, 0.3763, 0.3880, 0.3947),
        "itq": (0.4589, 0.4711, 0.4788, 0.4826),
    },
    "nuswide": {
        "lsh": (0.3449, 0.3653, 0.3815, 0.3861),
        "itq": (0.5183, 0.5140, 0.5172, 0.5185),
    },
    "mirflickr": {
        "lsh": (0.5710, 0.5799, 0.5908, 0.5931),
        "itq": (0.6479, 0.6516, 0.6536, 0.6544),
    },
}
# Codes an image (ANHC) of MCH-DCH with 32 bits on MS-COCO: sigma down, xi across.
ANHC_XI = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
ANHC: dict[float, Values] = {
    0.1: (1.12, 1.08, 1.06, 1.05, 1.03, 1.00),
    0.3: (1.79, 1.68, 1.62, 1.56, 1.49, 1.04),
    0.5: (1.68, 1.59, 1.54, 1.50, 1.43, 1.05),
    0.7: (1.47, 1.40, 1.36, 1.33, 1.28, 1.01),
    0.9: (1.43, 1.37, 1.34, 1.31, 1.26, 1.02),
    1.0: (1.00, 1.00, 1.00, 1.00, 1.00, 1.00),
}
CLASS_QUERIES = {"airplane": 131, "bird": 141}  # of its queries on MS-COCO


def guess(name: str, classes: tuple[str, ...]) -> str:
    """Which of the paper's data sets this is, by its name or its classes, or "none"."""
    plain = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    for key in PAPER:
        if key in plain:
            return key
    if len(classes) == 80 and {"airplane", "hot dog", "toothbrush"} <= set(classes):
        return "coco"
    return "none"


def theirs(paper: str, figure: str, method: str, bits: int) -> tuple[float, float | None] | None:
    """The paper's figure of X and of MCH-X, or None where it gives none."""
    if paper not in PAPER or bits not in BITS:
        return None
    place = BITS.index(bits)
    if figure == "map" and method in UNSUPERVISED[paper]:
        return UNSUPERVISED[paper][method][place], None
    pair = PAPER[paper].get(figure, {}).get(method)
    return None if pair is None else (pair[0][place], pair[1][place])
