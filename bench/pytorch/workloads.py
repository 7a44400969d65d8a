"""The PyTorch workloads of docs/how_to/pytorch.md: public model classes, random weights, seeded
inputs of changing sizes.

Each is a function that builds a model and gives back a function `one_round`, whose result is a list
of tensors: the outputs that must be the same, bit for bit, whatever the allocator. What one round
does depends on its number, and on the rounds before where the model learns.
"""

import random

import torch


class Setting:
    """Where and how large: `small` is for a quick look without a card."""

    def __init__(self, device="cuda", small=False):
        self.device = device
        self.small = small
        self.half = torch.float32 if device == "cpu" else torch.bfloat16

    def size(self, full, tiny):
        return tiny if self.small else full

    def build(self, make):
        torch.manual_seed(1)
        with torch.device(self.device):
            return make()

    def generator(self, draw):
        return torch.Generator(self.device).manual_seed(draw.getrandbits(30))

    def words(self, draw, vocabulary, batch, length):
        """A batch of texts at random."""
        return torch.randint(
            0,
            vocabulary,
            (batch, length),
            device=self.device,
            generator=self.generator(draw),
        )


def serving(s):
    """BERT answers batches of changing size and length."""
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=s.size(12, 2), attn_implementation="sdpa")
    model = s.build(lambda: BertModel(config)).to(s.half).eval()

    def one_round(number):
        draw = random.Random(number)
        outputs = []
        with torch.inference_mode():
            for _ in range(s.size(40, 3)):
                batch, length = draw.randint(1, s.size(48, 2)), draw.randint(8, s.size(512, 16))
                ids = s.words(draw, config.vocab_size, batch, length)
                outputs.append(model(ids).pooler_output.sum(0))
        return outputs

    return one_round


def generation(s):
    """GPT-2 writes text greedily, its cache of keys and values growing by a token a step."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=s.size(12, 2), attn_implementation="sdpa")
    model = s.build(lambda: GPT2LMHeadModel(config)).to(s.half).eval()

    def one_round(number):
        draw = random.Random(number)
        outputs = []
        with torch.inference_mode():
            for _ in range(s.size(2, 1)):
                batch, length = draw.randint(4, s.size(48, 5)), draw.randint(16, s.size(256, 20))
                ids = s.words(draw, config.vocab_size, batch, length)
                cache, words = None, []
                for _ in range(s.size(60, 3)):
                    answer = model(ids, past_key_values=cache, use_cache=True)
                    cache = answer.past_key_values
                    ids = answer.logits[:, -1:].argmax(-1)
                    words.append(ids)
                outputs.append(torch.cat(words, 1))
        return outputs

    return one_round


def _llama(s, checkpointing):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=s.size(16000, 200),
        hidden_size=s.size(1024, 64),
        intermediate_size=s.size(2816, 128),
        num_hidden_layers=s.size(12, 2),
        num_attention_heads=s.size(16, 4),
        num_key_value_heads=s.size(16, 4),
        attn_implementation="eager",
        use_cache=False,
    )
    model = s.build(lambda: LlamaForCausalLM(config)).to(s.half).train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def one_round(number):
        draw = random.Random(number)
        losses = []
        for _ in range(s.size(8, 2)):
            batch, length = draw.randint(2, s.size(8, 2)), draw.randint(64, s.size(1024, 70))
            ids = s.words(draw, config.vocab_size, batch, length)
            loss = model(ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
        return losses

    return one_round


def training(s):
    """Llama learns from batches of changing length."""
    return _llama(s, checkpointing=False)


def recompute(s):
    """The same with its activations computed again in the backward pass."""
    return _llama(s, checkpointing=True)


def graph_network(s):
    """GraphSAGE on sampled subgraphs, each of another size."""
    from torch_geometric.nn import GraphSAGE

    width = s.size(256, 16)
    model = s.build(
        lambda: GraphSAGE(in_channels=width, hidden_channels=width, num_layers=3, out_channels=64)
    ).eval()

    def one_round(number):
        draw = random.Random(number)
        outputs = []
        with torch.inference_mode():
            for _ in range(s.size(20, 3)):
                nodes = draw.randint(s.size(20_000, 50), s.size(120_000, 100))
                edges = nodes * draw.randint(4, 14)
                g = s.generator(draw)
                x = torch.randn((nodes, width), device=s.device, generator=g)
                edge_index = torch.randint(0, nodes, (2, edges), device=s.device, generator=g)
                outputs.append(model(x, edge_index).sum(0))
        return outputs

    return one_round


def detection(s):
    """Faster R-CNN finds boxes in images of changing size."""
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    model = s.build(
        lambda: fasterrcnn_resnet50_fpn(
            weights=None, weights_backbone=None, min_size=s.size(480, 64), max_size=s.size(900, 96)
        )
    ).eval()

    def one_round(number):
        draw = random.Random(number)
        outputs = []
        with torch.inference_mode():
            for _ in range(s.size(10, 1)):
                g = s.generator(draw)
                images = [
                    torch.rand(
                        (
                            3,
                            draw.randint(*s.size((300, 800), (40, 60))),
                            draw.randint(*s.size((300, 1100), (40, 60))),
                        ),
                        device=s.device,
                        generator=g,
                    )
                    for _ in range(draw.randint(1, s.size(6, 2)))
                ]
                for found in model(images):
                    outputs += [found["boxes"], found["scores"]]
        return outputs

    return one_round


def several_streams(s):
    """ResNet-50 on four streams in turn; inputs made on one stream are used on another and reported
    by record_stream."""
    from torchvision.models import resnet50

    model = s.build(lambda: resnet50(weights=None)).to(s.half).eval()
    streams = [torch.cuda.Stream() for _ in range(4)]

    def one_round(number):
        draw = random.Random(number)
        outputs = []
        with torch.inference_mode():
            for step in range(s.size(40, 4)):
                g = s.generator(draw)
                side = 32 * draw.randint(3, 9)
                images = torch.rand(
                    (draw.randint(1, 32), 3, side, side), device=s.device, generator=g
                ).to(s.half)
                stream = streams[step % 4]
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    images.record_stream(stream)
                    answer = model(images).sum(0)
                del images
                outputs.append(answer)
            for stream in streams:
                torch.cuda.current_stream().wait_stream(stream)
            for answer in outputs:
                answer.record_stream(torch.cuda.current_stream())
        return outputs

    return one_round


def _graphs(s, pool, shapes):
    """BERT captured once for each of several shapes, and replayed: into a pool of its own each
    (None), or all into one."""
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=6, attn_implementation="sdpa")
    model = s.build(lambda: BertModel(config)).to(s.half).eval()
    graphs = {}

    def capture(shape):
        ids = torch.zeros(shape, dtype=torch.long, device=s.device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(2):
                model(ids)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, pool=pool):
            out = model(ids).pooler_output
        graphs[shape] = (graph, ids, out)

    for shape in shapes:
        capture(shape)

    def one_round(number):
        draw = random.Random(number)
        outputs = []
        with torch.no_grad():
            for _ in range(s.size(60, 3)):
                shape = (draw.choice([1, 4, 8, 16]), draw.choice([64, 128, 256]))
                if shape not in graphs:
                    capture(shape)
                graph, ids, out = graphs[shape]
                ids.copy_(s.words(draw, config.vocab_size, *shape))
                graph.replay()
                outputs.append(out.sum(0))
        return outputs

    return one_round


def cuda_graphs(s):
    """BERT in CUDA graphs, captured when a shape first comes, each with memory of its own."""
    return _graphs(s, None, [])


def graphs_one_pool(s):
    """The same, all captured before the first round, the largest first, into one pool, as servers
    do: one runs at a time."""
    return _graphs(
        s,
        torch.cuda.graph_pool_handle(),
        [(batch, length) for batch in (16, 8, 4, 1) for length in (256, 128, 64)],
    )


def compiled(s):
    """A ViT through torch.compile, with batches of changing size."""
    from torchvision.models import VisionTransformer

    model = (
        s.build(
            lambda: VisionTransformer(
                image_size=224,
                patch_size=16,
                num_layers=4,
                num_heads=8,
                hidden_dim=512,
                mlp_dim=2048,
                num_classes=100,
            )
        )
        .to(s.half)
        .eval()
    )
    run = torch.compile(model, dynamic=True)

    def one_round(number):
        draw = random.Random(number)
        outputs = []
        with torch.inference_mode():
            for _ in range(s.size(50, 2)):
                g = s.generator(draw)
                outputs.append(
                    run(
                        torch.rand(
                            (draw.randint(2, 64), 3, 224, 224), device=s.device, generator=g
                        ).to(s.half)
                    ).sum(0)
                )
        return outputs

    return one_round


def segmentation(s):
    """DeepLabV3 learns from crops of changing size."""
    from torchvision.models.segmentation import deeplabv3_resnet50

    model = s.build(
        lambda: deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21)
    ).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def one_round(number):
        draw = random.Random(number)
        losses = []
        for _ in range(s.size(8, 1)):
            g = s.generator(draw)
            side = 32 * draw.randint(*s.size((4, 12), (2, 2)))
            images = torch.rand(
                (draw.randint(2, s.size(8, 2)), 3, side, side), device=s.device, generator=g
            )
            # The mean of squares has a backward pass that is deterministic everywhere;
            # interpolation is not trained through.
            loss = model.classifier(model.backbone(images)["out"]).float().pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
        return losses

    return one_round


ALL = {
    w.__name__: w
    for w in (
        serving,
        generation,
        training,
        recompute,
        graph_network,
        detection,
        several_streams,
        cuda_graphs,
        graphs_one_pool,
        compiled,
        segmentation,
    )
}
# A round of these begins with the weights that the last one left.
LEARN = {"training", "recompute", "segmentation"}
# What these keep in memory depends on how far the program runs ahead of the card: nobody else works
# on it meanwhile.
TIMING_TELLS = {"several_streams"}
NEED_CUDA = {"several_streams", "cuda_graphs", "graphs_one_pool", "compiled"}
