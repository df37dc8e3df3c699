//! Stages over named values: what passes through them, what they refuse, and the numbers of the unsplit
//! model.

use brigade_engine::schedule::Schedule;
use brigade_engine::{
    BuildError, Cause, EngineError, NamedValues, PipelineEngine, PipelineModuleBuilder, ScheduleMetadata,
    StageError, StageWrapper, TrainConfig, Value, World, WorldError, pipeline_module,
};
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::harness::{self, Run};
use crate::support::{SEQ, VOCAB, WIDTH, cross_entropy, formula, quiet_ranks, tokens};

const FEATURES: usize = 4;
/// Micro-batches of a batch.
const M: usize = 3;

fn linear(index: usize, device: &Device) -> Linear {
    formula(LinearConfig::new(FEATURES, FEATURES).init(device), 1 + index)
}

fn apply(linear: &Linear, x: Tensor<2>) -> Tensor<2> {
    linear.forward(x)
}

fn mean_square(y: Tensor<2>, t: Tensor<2>) -> Tensor<1> {
    (y - t).powi_scalar(2).mean()
}

fn pair(serial: usize) -> (Tensor<2>, Tensor<2>) {
    let row = |phase: f64| {
        let serial = f64::from(u32::try_from(serial).expect("small"));
        let start = Tensor::<1, Int>::arange(0..12, &Device::flex()).float();
        (start * 1.3 + (serial * 0.61 + phase)).sin().reshape([3, FEATURES])
    };
    (row(0.0), row(2.0))
}

#[derive(Module, Debug)]
struct Chain {
    layers: Vec<Linear>,
}

impl Chain {
    fn of(range: std::ops::Range<usize>, device: &Device) -> Self {
        Self { layers: range.map(|i| linear(i, device)).collect() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| layer.forward(x))
    }
}

/// Runs stages by several schedules at several numbers of ranks and compares with the plain loop.
fn compare<I: Value, O: Value, T: Value>(
    name: &'static str,
    stages: Vec<StageWrapper>,
    metadata: &ScheduleMetadata,
    loss: fn(O, T) -> Tensor<1>,
    data: fn(usize) -> (I, T),
    reference: &Run,
) {
    for p in 1..=stages.len() {
        for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::ZbH1] {
            let (stages, metadata) = (stages.clone(), metadata.clone());
            let builder = move || Ok(pipeline_module::<I, O, T, _>(&stages, &metadata, loss)?);
            let found = harness::run(name, builder, data, schedule, (p, M, 2));
            assert_eq!(&found, reference, "{name} under {schedule}, p={p}");
        }
    }
}

#[test]
fn twelve_layers_in_two_and_in_four_stages_train_as_unsplit() {
    let reference = harness::unsplit(|d| Chain::of(0..12, d), Chain::forward, mean_square, pair, (M, 2));
    for cuts in [vec![0, 6, 12], vec![0, 3, 6, 9, 12]] {
        let n_stages = cuts.len() - 1;
        let name = |i: usize| if i == 0 { "x".to_owned() } else { format!("h{i}") };
        let stage = |i: usize| {
            let range = cuts[i]..cuts[i + 1];
            StageWrapper::lazy(format!("stage{i}"), move |d| Chain::of(range.clone(), d))
                .inputs([name(i)])
                .outputs([name(i + 1)])
                .positional(Chain::forward)
        };
        let stages: Vec<StageWrapper> = (0..n_stages).map(stage).collect();
        compare("a chain", stages, &ScheduleMetadata::new(["x"]), mean_square, pair, &reference);
    }
}

#[test]
fn one_stage_is_the_whole_model() {
    let reference = harness::unsplit(|d| Chain::of(0..3, d), Chain::forward, mean_square, pair, (M, 2));
    let whole = StageWrapper::lazy("whole", |d| Chain::of(0..3, d)).inputs(["x"]).outputs(["y"]);
    let stages = vec![whole.positional(Chain::forward)];
    compare("one stage", stages, &ScheduleMetadata::new(["x"]), mean_square, pair, &reference);
}

type Masked = (Tensor<2>, Tensor<2, Bool>, Option<Tensor<2>>);

fn masked(serial: usize) -> (Masked, Tensor<2>) {
    let (x, t) = pair(serial);
    let mask = pair(serial + 7).0.greater_elem(0.4);
    ((x, mask, None), t)
}

/// `l2(mask(l1(l0(x))) + x) * l0(x)`: the input and the first output pass through stages that do not
/// use them, the mask arrives where it is used, in another order than the model takes it.
#[test]
fn values_pass_through_stages_that_do_not_use_them() {
    let reference = harness::unsplit(
        |d| Chain::of(0..3, d),
        |model, (x, mask, _): Masked| {
            let a = model.layers[0].forward(x.clone());
            let b = model.layers[1].forward(a.clone()).mask_fill(mask, 0.5);
            model.layers[2].forward(b + x) * a
        },
        mean_square,
        masked,
        (M, 2),
    );
    let stages = vec![
        StageWrapper::lazy("s0", |d| linear(0, d)).inputs(["x"]).outputs(["a"]).positional(apply),
        StageWrapper::lazy("s1", |d| linear(1, d)).inputs(["mask", "none", "a"]).outputs(["b"]).positional(
            |l: &Linear, (mask, none, a): (Tensor<2, Bool>, Option<Tensor<2>>, Tensor<2>)| {
                assert!(none.is_none());
                l.forward(a).mask_fill(mask, 0.5)
            },
        ),
        StageWrapper::lazy("s2", |d| linear(2, d))
            .inputs(["x", "a", "b"])
            .outputs(["y"])
            .positional(|l: &Linear, (x, a, b): (Tensor<2>, Tensor<2>, Tensor<2>)| l.forward(b + x) * a),
    ];
    let metadata = ScheduleMetadata::new(["x", "mask", "none"]);
    compare("bypass", stages, &metadata, mean_square, masked, &reference);
}

/// A stage may give several values, nested ones too; the results may come from any stage.
#[test]
fn stages_give_several_outputs_of_any_structure() {
    type Results = (Tensor<2>, Vec<Tensor<2>>, i64);
    let loss = |(y, parts, count): Results, t: Tensor<2>| {
        assert_eq!(count, 3);
        parts.into_iter().fold(mean_square(y, t), |sum, part| sum + part.mean())
    };
    fn forward(model: &Chain, x: Tensor<2>) -> Results {
        let [a, b, c] = [0, 1, 2].map(|i: usize| model.layers[i].forward(x.clone()));
        let d = model.layers[3].forward(a.clone() * c.clone());
        (model.layers[4].forward(d + b.clone()), vec![a, b], 3)
    }
    let reference = harness::unsplit(|d| Chain::of(0..5, d), forward, loss, pair, (M, 2));
    type Nested = (Vec<Tensor<2>>, (Tensor<2>, Option<Tensor<2>>), i64);
    let stages = vec![
        StageWrapper::lazy("s0", |d| Chain::of(0..3, d))
            .inputs(["x"])
            .outputs(["parts", "c", "count"])
            .positional(|model: &Chain, x: Tensor<2>| -> Nested {
                let [a, b, c] = [0, 1, 2].map(|i: usize| model.layers[i].forward(x.clone()));
                (vec![a, b], (c, None), 3)
            }),
        StageWrapper::lazy("s1", |d| linear(3, d)).inputs(["parts", "c"]).outputs(["d"]).positional(
            |l: &Linear, (parts, (c, none)): (Vec<Tensor<2>>, (Tensor<2>, Option<Tensor<2>>))| {
                assert!(none.is_none());
                l.forward(parts[0].clone() * c)
            },
        ),
        StageWrapper::lazy("s2", |d| linear(4, d)).inputs(["d", "parts"]).outputs(["y"]).positional(
            |l: &Linear, (d, parts): (Tensor<2>, Vec<Tensor<2>>)| l.forward(d + parts[1].clone()),
        ),
    ];
    let results = ["y", "parts", "count"].map(str::to_owned).to_vec();
    let metadata = ScheduleMetadata { results, ..ScheduleMetadata::new(["x"]) };
    compare("several outputs", stages, &metadata, loss, pair, &reference);
}

#[derive(Module, Debug)]
struct Encoder {
    words: Embedding,
    types: Embedding,
    dense: Linear,
}

impl Encoder {
    fn new(device: &Device) -> Self {
        let embedding = |n: usize| EmbeddingConfig::new(n, WIDTH).init(device);
        let dense = LinearConfig::new(WIDTH, WIDTH).init(device);
        formula(Self { words: embedding(VOCAB), types: embedding(2), dense }, 1)
    }

    fn forward(&self, ids: Tensor<2, Int>, types: Tensor<2, Int>, mask: Tensor<2>) -> Tensor<3> {
        let x = self.words.forward(ids) + self.types.forward(types);
        self.dense.forward(x * mask.unsqueeze_dim(2))
    }
}

#[derive(Module, Debug)]
struct Decoder {
    out: Linear,
}

impl Decoder {
    fn new(device: &Device) -> Self {
        formula(Self { out: LinearConfig::new(WIDTH, VOCAB).init(device) }, 2)
    }

    fn forward(&self, x: Tensor<3>, mask: Tensor<2>) -> Tensor<3> {
        self.out.forward(x * mask.unsqueeze_dim(2))
    }
}

#[derive(Module, Debug)]
struct Bert {
    encoder: Encoder,
    decoder: Decoder,
}

fn bert_inputs(serial: usize) -> (NamedValues, Tensor<2, Int>) {
    let (ids, targets) = tokens(serial, 2);
    let types = Tensor::<1, Int>::arange(0..5, &Device::flex()).remainder_scalar(2).reshape([1, SEQ]);
    let mask = Tensor::<2>::ones([2, SEQ], &Device::flex()).slice_fill([0..1, 3..SEQ], 0.0);
    let named = NamedValues::new()
        .with("token_type_ids", types.repeat_dim(0, 2))
        .and_then(|named| named.with("input_ids", ids))
        .and_then(|named| named.with("attention_mask", mask));
    (named.expect("three names"), targets)
}

fn bert_loss(mut results: NamedValues, targets: Tensor<2, Int>) -> Tensor<1> {
    cross_entropy(results.take("logits").expect("the model gives logits"), targets)
}

/// Inputs and results by name, as keyword arguments and a dict of results.
#[test]
fn named_inputs_and_results_are_keyword_arguments() {
    let reference = harness::unsplit(
        |d| Bert { encoder: Encoder::new(d), decoder: Decoder::new(d) },
        |model, mut inputs: NamedValues| {
            let mut mask = || inputs.take::<Tensor<2>>("attention_mask").expect("a mask");
            let mask = mask();
            let ids = inputs.take("input_ids").expect("ids");
            let x = model.encoder.forward(ids, inputs.take("token_type_ids").expect("types"), mask.clone());
            NamedValues::new().with("logits", model.decoder.forward(x, mask)).expect("one name")
        },
        bert_loss,
        bert_inputs,
        (M, 2),
    );
    let encoder = StageWrapper::lazy("encoder", Encoder::new)
        .inputs(["input_ids", "token_type_ids", "attention_mask"])
        .outputs(["hidden"])
        .named(|encoder: &Encoder, mut inputs| {
            let (ids, types) = (inputs.take("input_ids")?, inputs.take("token_type_ids")?);
            let hidden = encoder.forward(ids, types, inputs.take("attention_mask")?);
            NamedValues::new().with("hidden", hidden)
        });
    let decoder = StageWrapper::lazy("decoder", Decoder::new)
        .inputs(["attention_mask", "hidden"])
        .outputs(["logits"])
        .named(|decoder: &Decoder, mut inputs| {
            let logits = decoder.forward(inputs.take("hidden")?, inputs.take("attention_mask")?);
            NamedValues::new().with("logits", logits)
        });
    let metadata = ScheduleMetadata::new(["input_ids", "attention_mask", "token_type_ids"]);
    compare("keywords", vec![encoder, decoder], &metadata, bert_loss, bert_inputs, &reference);
}

#[test]
fn ready_modules_start_from_their_values() {
    let reference = harness::unsplit(|d| Chain::of(0..2, d), Chain::forward, mean_square, pair, (M, 2));
    let device = Device::flex().autodiff();
    // The second one was used for inference before: it has no autodiff.
    let stage = |i: usize, from: &str, to: &str| {
        let module = linear(i, &device);
        let module = if i == 1 { module.valid() } else { module };
        StageWrapper::ready(format!("ready{i}"), module).inputs([from]).outputs([to]).positional(apply)
    };
    let stages = vec![stage(0, "x", "h"), stage(1, "h", "y")];
    compare("ready", stages, &ScheduleMetadata::new(["x"]), mean_square, pair, &reference);
}

#[derive(Module, Debug)]
struct TiedModel {
    embedding: Embedding,
    dense: Linear,
}

fn embedding(device: &Device) -> Embedding {
    formula(EmbeddingConfig::new(VOCAB, WIDTH).init(device), 3)
}

fn dense(device: &Device) -> Linear {
    formula(LinearConfig::new(WIDTH, WIDTH).init(device), 4)
}

fn unembed(embedding: &Embedding, x: Tensor<3>) -> Tensor<3> {
    x.matmul(embedding.weight.val().transpose().unsqueeze())
}

fn tied_stages() -> Vec<StageWrapper> {
    vec![
        StageWrapper::lazy("embed", embedding)
            .inputs(["ids"])
            .outputs(["x"])
            .positional(|e: &Embedding, ids: Tensor<2, Int>| e.forward(ids)),
        StageWrapper::lazy("middle", dense)
            .inputs(["x"])
            .outputs(["h"])
            .positional(|l: &Linear, x: Tensor<3>| l.forward(x)),
        // Starts equal to the first one's values, whatever it is built with.
        StageWrapper::lazy("head", |d| EmbeddingConfig::new(VOCAB, WIDTH).init(d))
            .inputs(["h"])
            .outputs(["logits"])
            .positional(unembed),
    ]
}

/// A word embedding and a head on other stages that are one parameter: within a few roundings of a model
/// that has it once, and equal to the bit on both stages.
#[test]
fn parameters_of_several_stages_can_be_one() {
    let data = |serial| tokens(serial, 2);
    let reference = harness::unsplit(
        |d| TiedModel { embedding: embedding(d), dense: dense(d) },
        |model, ids: Tensor<2, Int>| {
            let x = model.embedding.forward(ids);
            unembed(&model.embedding, model.dense.forward(x))
        },
        cross_entropy,
        data,
        (M, 2),
    );
    for p in 1..=3 {
        let metadata = ScheduleMetadata::new(["ids"]).tie([("weight", 2), ("weight", 0)]);
        let builder = move || Ok(pipeline_module(&tied_stages(), &metadata, cross_entropy)?);
        let found = harness::run("tied stages", builder, data, Schedule::OneFOneB, (p, M, 2));
        let [embed, weight, bias, head] = &found.weights[..] else { panic!("four parameters") };
        assert_eq!(embed, head, "p={p}");
        let once = [embed, weight, bias].map(Clone::clone).to_vec();
        let (losses, evaluations) = (found.losses.clone(), found.evaluations.clone());
        let found = Run { losses, evaluations, gradients: vec![], weights: once };
        let reference = Run { gradients: vec![], ..reference.clone() };
        found.assert_close(&reference, &format!("p={p}"));
    }
}

#[test]
fn a_tied_parameter_that_a_stage_does_not_have_is_named() {
    let built = World::local(1).expect("one rank").run(|rank| {
        let metadata = ScheduleMetadata::new(["ids"]).tie([("weight", 0), ("kernel", 2)]);
        pipeline_module::<Tensor<2, Int>, Tensor<3>, _, _>(&tied_stages(), &metadata, cross_entropy)?
            .build(&rank)?;
        Ok::<_, EngineError>(())
    });
    let error = built.expect_err("there is no kernel").to_string();
    assert!(error.contains("has no parameter `kernel`"), "{error}");
}

type Builder = PipelineModuleBuilder<Tensor<2>, Tensor<2>, Tensor<2>>;

fn chain_of_two(first: [&str; 2], second: [&str; 2]) -> Vec<StageWrapper> {
    [first, second]
        .into_iter()
        .enumerate()
        .map(|(i, [from, to])| {
            StageWrapper::lazy(format!("s{i}"), move |d| linear(i, d))
                .inputs([from])
                .outputs([to])
                .positional(apply)
        })
        .collect()
}

#[test]
fn stages_whose_names_do_not_fit_are_refused_when_the_pipeline_is_made() {
    let refused = |stages: &[StageWrapper], metadata: &ScheduleMetadata| {
        let made: Result<Builder, BuildError> = pipeline_module(stages, metadata, mean_square);
        made.expect_err("the stages do not fit").to_string()
    };
    let x = ScheduleMetadata::new(["x"]);
    let fits = chain_of_two(["x", "h"], ["h", "y"]);
    assert_eq!(
        refused(&chain_of_two(["x", "h"], ["g", "y"]), &x),
        "the named values of the stages do not fit: stage 1 uses `g`, which neither an input of the model nor an earlier stage makes"
    );
    assert!(refused(&chain_of_two(["x", "h"], ["h", "x"]), &x).contains("`x` is made by the model inputs"));
    assert!(refused(&fits, &ScheduleMetadata::new(["input"])).contains("stage 0 uses `x`"));
    let unknown = ScheduleMetadata { results: vec!["z".to_owned()], ..x.clone() };
    assert!(refused(&fits, &unknown).contains("the model results uses `z`"));
    let far = x.clone().tie([("weight", 0), ("weight", 2)]);
    assert_eq!(refused(&fits, &far), "`weight` of stage 2 is tied, but there are 2 stages");
    assert!(refused(&fits, &x.clone().tie::<String>([])).contains("set 0 of tied parameters is empty"));
    assert!(matches!(
        pipeline_module::<Tensor<2>, Tensor<2>, Tensor<2>, _>(&[], &x, mean_square),
        Err(BuildError::NoLayers)
    ));
}

/// Runs one training batch and returns what the stage said.
fn stage_error<I: Value>(stages: Vec<StageWrapper>, inputs: &'static [&str], input: fn() -> I) -> StageError {
    quiet_ranks();
    let failed = World::local(stages.len()).expect("a few ranks").run(move |rank| {
        let builder = pipeline_module(&stages, &ScheduleMetadata::new(inputs.iter().copied()), mean_square)?;
        let mut engine =
            PipelineEngine::new(builder.build(&rank)?, SgdConfig::new().init(), TrainConfig::new(0.1))?;
        let mut data = std::iter::once((input(), pair(0).1));
        engine.train_batch(&mut data)?;
        Ok::<_, EngineError>(())
    });
    let Err(WorldError::Rank { source: EngineError::Step(step), .. }) = failed else {
        panic!("a step fails, not {failed:?}")
    };
    let Cause::LayerFailed { source, .. } = step.cause() else { panic!("a stage fails, not {step}") };
    source.downcast_ref::<StageError>().expect("the stage says why").clone()
}

#[test]
fn a_stage_that_does_not_keep_to_its_names_stops_the_step() {
    let first = |forward: fn(&Linear, NamedValues) -> Result<NamedValues, StageError>| {
        StageWrapper::lazy("s0", |d| linear(0, d)).inputs(["x"]).outputs(["h"]).named(forward)
    };
    let second = || chain_of_two(["x", "h"], ["h", "y"]).remove(1);
    let run = |stage| stage_error(vec![stage, second()], &["x"], || pair(0).0);
    let missing = run(first(|_, mut values| values.take::<Tensor<2>>("mask").map(|_| values)));
    assert_eq!(missing, StageError::Missing { name: "mask".to_owned(), known: vec!["x".to_owned()] });
    let not_given = run(first(|_, _| NamedValues::new().with("g", 1_i64)));
    assert_eq!(not_given, StageError::NotGiven { name: "h".to_owned(), given: vec!["g".to_owned()] });
    let undeclared = run(first(|_, mut values| {
        NamedValues::new().with("h", values.take::<Tensor<2>>("x")?)?.with("more", true)
    }));
    assert_eq!(
        undeclared,
        StageError::Undeclared { name: "more".to_owned(), declared: vec!["h".to_owned()] }
    );
    let other_type = run(first(|_, mut values| values.take::<Tensor<3>>("x").map(|_| values)));
    assert!(matches!(other_type, StageError::Value { name, .. } if name == "x"));
    let twice = run(first(|_, _| NamedValues::new().with("h", 1_i64)?.with("h", 2_i64)));
    assert_eq!(twice, StageError::Twice { name: "h".to_owned() });
    let pairs = StageWrapper::lazy("s0", |d| linear(0, d)).inputs(["x"]).outputs(["h", "g"]);
    let one_of_two = run(pairs.positional(apply));
    assert!(matches!(one_of_two, StageError::Outputs { names, .. } if names == ["h", "g"]));
}

#[test]
fn a_model_called_with_other_arguments_than_its_own_says_which_it_takes() {
    let stages = || chain_of_two(["x", "h"], ["h", "y"]);
    let too_few = stage_error(stages(), &["x", "mask"], || pair(0).0);
    assert_eq!(
        too_few.to_string(),
        "the model takes [\"x\", \"mask\"], found a Float tensor of rank 2: give one value by itself and others as a tuple"
    );
    let misnamed = stage_error(stages(), &["x"], || NamedValues::new().with("z", pair(0).0).expect("a name"));
    assert!(matches!(misnamed, StageError::Undeclared { name, .. } if name == "z"));
    let absent = stage_error(stages(), &["x"], NamedValues::new);
    assert!(matches!(absent, StageError::Missing { name, .. } if name == "x"));
}
