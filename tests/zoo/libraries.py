"""Models of torchvision, timm and transformers, with weights and data of a seed.

None of the three is needed by the tests: `tests.zoo.census` runs where they are installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

VISION = (
    "alexnet",
    "vgg11_bn",
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "densenet121",
    "googlenet",
    "inception_v3",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mnasnet1_0",
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
    "efficientnet_b0",
    "efficientnet_v2_s",
    "regnet_y_400mf",
    "convnext_tiny",
    "vit_b_32",
    "swin_t",
    "swin_v2_t",
    "maxvit_t",
    "segmentation.lraspp_mobilenet_v3_large",
    "segmentation.deeplabv3_mobilenet_v3_large",
    "segmentation.deeplabv3_resnet50",
    "segmentation.fcn_resnet50",
    "detection.fpn_resnet18",
    "detection.fpn_mobilenet_v3_large",
    "detection.ssd300_backbone",
    "detection.ssdlite320_backbone",
    "detection.retinanet_heads",
    "optical_flow.raft_small",
    "video.r3d_18",
    "video.mc3_18",
    "video.swin3d_t",
)
TIMM = (
    "deit_tiny_patch16_224",
    "mixer_s32_224",
    "mobilevit_xxs",
    "ghostnet_100",
    "repvgg_a0",
    "levit_128s",
    "edgenext_xx_small",
    "poolformer_s12",
    "hrnet_w18_small",
    "tf_efficientnet_lite0",
    "mobilenetv4_conv_small",
    "eva02_tiny_patch14_224",
    "nfnet_l0",
    "gcresnet50t",
    "regnetx_002",
    "efficientformer_l1",
    "coatnet_nano_rw_224",
    "dla34",
    "res2net50_26w_4s",
    "crossvit_tiny_240",
    "deit3_small_patch16_224",
    "cait_xxs24_224",
    "tnt_s_patch16_224",
    "fastvit_t8",
    "mobileone_s0",
    "resmlp_12_224",
    "gmlp_s16_224",
    "mixnet_s",
    "skresnet18",
    "resnest14d",
    "efficientvit_b0",
    "pit_ti_224",
    "tiny_vit_5m_224",
    "mvitv2_tiny",
)
SMALL: Mapping[str, object] = {
    "vocab_size": 99,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "pad_token_id": 0,
}
SPEECH: Mapping[str, object] = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 64,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": 99,
    "pad_token_id": 0,
}
GROUPED: Mapping[str, object] = {**SMALL, "num_key_value_heads": 2, "head_dim": 16}
GPT: Mapping[str, object] = {"vocab_size": 99, "n_embd": 64, "n_layer": 2, "n_head": 4}
T5: Mapping[str, object] = {
    "vocab_size": 99,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 256,
    "num_layers": 2,
    "num_heads": 4,
}
ENDS: Mapping[str, object] = {"bos_token_id": 1, "eos_token_id": 2}
IMAGE: Mapping[str, object] = {**SMALL, "image_size": 64, "patch_size": 8}
TRANSFORMERS: Mapping[str, tuple[str, Mapping[str, object], str]] = {
    "bert": ("BertModel", SMALL, "text"),
    "distilbert": (
        "DistilBertModel",
        {"vocab_size": 99, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
        "text",
    ),
    "roberta": ("RobertaModel", SMALL, "text"),
    "albert": ("AlbertModel", {**SMALL, "embedding_size": 32}, "text"),
    "electra": ("ElectraModel", {**SMALL, "embedding_size": 32}, "text"),
    "mobilebert": (
        "MobileBertModel",
        {**SMALL, "embedding_size": 32, "intra_bottleneck_size": 64, "true_hidden_size": 64},
        "text",
    ),
    "deberta_v2": (
        "DebertaV2Model",
        {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        "text",
    ),
    "gpt2": ("GPT2LMHeadModel", GPT, "text"),
    "gpt_neox": ("GPTNeoXForCausalLM", SMALL, "text"),
    "opt": (
        "OPTForCausalLM",
        {**SMALL, "ffn_dim": 128, "word_embed_proj_dim": 64},
        "text",
    ),
    "llama": ("LlamaForCausalLM", GROUPED, "text"),
    "mistral": ("MistralForCausalLM", GROUPED, "text"),
    "qwen2": ("Qwen2ForCausalLM", GROUPED, "text"),
    "gemma": ("GemmaForCausalLM", GROUPED, "text"),
    "phi": ("PhiForCausalLM", SMALL, "text"),
    "t5": (
        "T5Model",
        T5,
        "pair",
    ),
    "bart": ("BartModel", SPEECH, "pair"),
    "whisper": ("WhisperModel", {**SPEECH, "max_source_positions": 32}, "speech"),
    "wav2vec2": ("Wav2Vec2Model", {**SMALL, "num_conv_pos_embeddings": 16}, "sound"),
    "t5_encoder": ("T5EncoderModel", T5, "text"),
    "xlm_roberta": ("XLMRobertaModel", SMALL, "text"),
    "mpnet": ("MPNetModel", SMALL, "text"),
    "squeezebert": ("SqueezeBertModel", {**SMALL, "embedding_size": 64}, "text"),
    "convbert": ("ConvBertModel", {**SMALL, "embedding_size": 32}, "text"),
    "deberta": (
        "DebertaModel",
        {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        "text",
    ),
    "modernbert": ("ModernBertModel", {**SMALL, **ENDS}, "text"),
    "phi3": ("Phi3ForCausalLM", {**SMALL, **ENDS}, "text"),
    "gemma2": ("Gemma2ForCausalLM", GROUPED, "text"),
    "qwen3": ("Qwen3ForCausalLM", GROUPED, "text"),
    "olmo2": ("Olmo2ForCausalLM", {**SMALL, **ENDS}, "text"),
    "starcoder2": ("Starcoder2ForCausalLM", {**SMALL, "num_key_value_heads": 2}, "text"),
    "bloom": (
        "BloomForCausalLM",
        {"vocab_size": 99, "hidden_size": 64, "n_layer": 2, "n_head": 4},
        "text",
    ),
    "falcon": ("FalconForCausalLM", SMALL, "text"),
    "marian": ("MarianModel", {**SPEECH, "decoder_start_token_id": 0}, "pair"),
    "m2m_100": ("M2M100Model", SPEECH, "pair"),
    "hubert": ("HubertModel", {**SMALL, "num_conv_pos_embeddings": 16}, "sound"),
    "wavlm": ("WavLMModel", {**SMALL, "num_conv_pos_embeddings": 16}, "sound"),
    "sew": ("SEWModel", {**SMALL, "num_conv_pos_embeddings": 16}, "sound"),
    "vit": ("ViTModel", IMAGE, "image"),
    "beit": ("BeitModel", IMAGE, "image"),
    "yolos": (
        "YolosForObjectDetection",
        {**IMAGE, "image_size": [64, 64], "num_detection_tokens": 10},
        "image",
    ),
    "swin": (
        "SwinModel",
        {"image_size": 64, "embed_dim": 32, "depths": [1, 1], "num_heads": [2, 4]},
        "image",
    ),
    "convnext": (
        "ConvNextModel",
        {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1]},
        "image",
    ),
    "mobilevit": ("MobileViTModel", {}, "image"),
    "clip_vision": ("CLIPVisionModel", IMAGE, "image"),
    "clip": ("CLIPModel", {}, "both"),
    "dinov2": ("Dinov2Model", IMAGE, "image"),
    "segformer": ("SegformerModel", {}, "image"),
}

Made = tuple[nn.Module, dict[str, Tensor]]
"""A model in evaluation mode, and its samples by argument."""


def names() -> list[str]:
    """Returns the names of all models, as `library/name`."""
    return [
        *(f"torchvision/{name}" for name in VISION),
        *(f"timm/{name}" for name in TIMM),
        *(f"transformers/{name}" for name in TRANSFORMERS),
    ]


def make(name: str) -> Made:
    """Returns a model and its samples, of a seed.

    Raises ImportError where the library is missing.
    """
    library, _, model = name.partition("/")
    makers: dict[str, Callable[[str], Made]] = {
        "torchvision": _torchvision,
        "timm": _timm,
        "transformers": _transformers,
    }
    with torch.random.fork_rng():
        torch.manual_seed(7)
        net, data = makers[library](model)
        for part in net.modules():
            if isinstance(part, nn.BatchNorm2d):
                nn.init.uniform_(part.running_mean, -0.3, 0.3)  # type: ignore[arg-type]
                nn.init.uniform_(part.running_var, 0.5, 1.5)  # type: ignore[arg-type]
        return net.eval(), data


def declare_torchvision() -> None:
    """Declares the operators that torchvision's `_meta_registrations.py` names.

    Its compiled library fits one build of PyTorch alone; no model here calls its operators.
    """
    if hasattr(torch.ops.torchvision, "nms"):
        return
    make: Any = torch.library.Library
    library = make("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    for name in (
        "qnms",
        "roi_align",
        "_roi_align_backward",
        "ps_roi_align",
        "_ps_roi_align_backward",
        "roi_pool",
        "_roi_pool_backward",
        "ps_roi_pool",
        "_ps_roi_pool_backward",
        "qroi_align",
        "deform_conv2d",
        "_deform_conv2d_backward",
    ):
        library.define(f"{name}(Tensor x) -> Tensor")
    _KEPT.append(library)


_KEPT: list[object] = []
"""Declarations end with the object that made them."""


def _torchvision(name: str) -> Made:
    declare_torchvision()
    if name.startswith("detection"):
        return _detector_part(name.partition(".")[2])
    where, _, model = f"torchvision.models.{name}".rpartition(".")
    given: dict[str, object] = {"weights": None}
    if name.startswith("segmentation"):
        given["weights_backbone"] = None
    if model in ("googlenet", "inception_v3"):
        given |= {"init_weights": True, "aux_logits": False}
    net = getattr(importlib.import_module(where), model)(**given)
    if name.startswith("video"):
        return net, {"x": torch.randn(1, 3, 16, 32, 32)}
    if name.startswith("optical_flow"):
        return Flow(net), {
            "first": torch.rand(1, 3, 128, 128),
            "second": torch.rand(1, 3, 128, 128),
        }
    size = {"inception_v3": 96, "vit_b_32": 224, "maxvit_t": 224}.get(name, 64)
    return net, {"x": torch.randn(2, 3, size, size)}


def _detector_part(name: str) -> Made:
    """Returns what a detector computes before it chooses boxes, which depends on data."""
    library: Any = importlib.import_module("torchvision.models.detection")
    parts: Any = importlib.import_module("torchvision.models.detection.backbone_utils")
    plain: dict[str, object] = {"weights": None, "weights_backbone": None}
    size = {"ssd300_backbone": 300, "ssdlite320_backbone": 96}.get(name, 64)
    net: nn.Module
    if name == "ssd300_backbone":
        net = library.ssd300_vgg16(**plain).backbone
    elif name == "ssdlite320_backbone":
        net = library.ssdlite320_mobilenet_v3_large(**plain).backbone
    elif name == "retinanet_heads":
        net = Heads(library.retinanet_resnet50_fpn(**plain))
    elif name == "fpn_resnet18":
        net = parts.resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    else:
        net = parts.mobilenet_backbone(name.removeprefix("fpn_"), weights=None, fpn=True)
    return net, {"x": torch.randn(1, 3, size, size)}


class Heads(nn.Module):
    """Scores and boxes of all anchors."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.backbone, self.head = net.backbone, net.head

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.head(list(self.backbone(x).values()))  # type: ignore[no-any-return]


class Flow(nn.Module):
    """The flow between two images, by two updates."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.net(first, second, num_flow_updates=2))


def _timm(name: str) -> Made:
    declare_torchvision()
    net = importlib.import_module("timm").create_model(name, pretrained=False)
    size = net.default_cfg["input_size"][-1] if net.default_cfg.get("fixed_input_size") else 64
    size = {"levit_128s": 224, "mobilevit_xxs": 128, "efficientvit_b0": 224}.get(name, size)
    return net, {"x": torch.randn(2, 3, size, size)}


def _transformers(name: str) -> Made:
    declare_torchvision()
    library: Any = importlib.import_module("transformers")
    kind, settings, data = TRANSFORMERS[name]
    model = getattr(library, kind)
    config = model.config_class(**settings)
    config.use_cache = False
    if name == "clip":
        for part in (config.text_config, config.vision_config):
            part.update({**SMALL, "image_size": 32, "patch_size": 8, "eos_token_id": 98})
    net = Keyed(model(config))
    ids = torch.randint(1, 98, (2, 16))
    mask = torch.ones_like(ids)
    mask[1, 12:] = 0
    samples: dict[str, dict[str, Tensor]] = {
        "text": {"input_ids": ids, "attention_mask": mask},
        "pair": {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :8]},
        "speech": {"input_features": torch.randn(1, 80, 64), "decoder_input_ids": ids[:1, :8]},
        "sound": {"input_values": torch.randn(1, 3200)},
        "both": {"input_ids": ids, "pixel_values": torch.randn(2, 3, 32, 32)},
        "image": {"pixel_values": torch.randn(2, 3, 64, 64)},
    }
    return net, samples[data]


class Keyed(nn.Module):
    """Calls a model with its arguments by name, and gives a tuple of tensors without names."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, **given: Tensor) -> tuple[Tensor, ...]:
        found = self.net(**given, return_dict=False)
        return tuple(x for x in found if isinstance(x, Tensor))
