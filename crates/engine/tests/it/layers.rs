//! Lists of layers: functions, modules with a function, names, nested and dynamic lists, keys of ties.

use brigade_engine::{
    BuildError, EngineError, Layer, LayerList, LayerSpec, LayerTypeError, Layers, PipelineEngine,
    PipelineModule, TieError, TiedLayerSpec, TrainConfig, Value, World,
};
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};

use crate::support::{formula, quiet_ranks};

fn linear(seed: usize, device: &Device) -> Linear {
    formula(LinearConfig::new(3, 3).init(device), seed)
}

#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
}

impl Layer for Dense {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        relu(self.linear.forward(x))
    }
}

type Batch<I> = Vec<(I, Tensor<2>)>;

/// Losses of three steps over `p` stages, the same on every rank.
fn losses<I: Value + Clone + Sync>(p: usize, layers: &Layers<I, Tensor<2>>, batch: &Batch<I>) -> Vec<f64> {
    let (layers, batch) = (layers.clone(), batch.clone());
    let all = World::local(p).expect("a few ranks").run(move |rank| {
        let loss = |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean();
        let module = PipelineModule::builder(&layers, loss)
            .partition("uniform".parse()?)
            .micro_batches(u32::try_from(batch.len()).expect("small"))
            .build(&rank)?;
        let config = TrainConfig::new(0.1);
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
        let mut losses = Vec::new();
        for _ in 0..3 {
            losses.extend(engine.train_batch(&mut batch.iter().cloned())?.map(|report| report.loss));
        }
        Ok::<_, EngineError>(losses)
    });
    let all = all.expect("the steps run");
    assert!(all.iter().all(|losses| *losses == all[0] && losses.len() == 3));
    all[0].clone()
}

fn batch() -> Batch<Tensor<2>> {
    let rows = |shift: f32| {
        Tensor::<2>::from_data([[0.3 + shift, -0.2, 0.5], [-0.4, 0.1 - shift, 0.9]], &Device::flex())
    };
    vec![(rows(0.0), rows(0.2)), (rows(0.1), rows(-0.3))]
}

/// The error of building a list on one rank.
fn refused<I: Value, O: Value>(layers: &Layers<I, O>) -> BuildError {
    build(layers).expect_err("the list is refused")
}

/// Builds a list on one rank; its number of parameters.
fn build<I: Value, O: Value>(layers: &Layers<I, O>) -> Result<u64, BuildError> {
    let layers = layers.clone();
    let built = World::local(1).expect("one rank").run(move |rank| {
        let built = PipelineModule::builder(&layers, |_: O, (): ()| Tensor::zeros([1], &Device::flex()));
        Ok::<_, EngineError>(built.build(&rank).map(|module| module.n_parameters()))
    });
    built.expect("errors are values here").remove(0)
}

#[test]
fn functions_and_modules_with_a_function_equal_the_layer_written_out() {
    let written = Layers::new().repeat(3, |i, d| Dense { linear: linear(i, d) });
    let split = (0..3).fold(Layers::new(), |layers, i| {
        layers.with(move |d| linear(i, d), |linear: &Linear, x| linear.forward(x)).map(relu)
    });
    let nested = (0..3).fold(Layers::new(), |layers, i| {
        let inner = Layers::new().with(move |d| linear(i, d), |linear: &Linear, x| linear.forward(x));
        layers.then(inner.then(Layers::new().map(relu)))
    });
    assert_eq!((written.len(), split.len(), nested.len()), (3, 6, 6));
    let expected = losses(1, &written, &batch());
    for p in [1, 2, 3, 6] {
        assert_eq!(losses(p, &split, &batch()), expected, "p={p}");
        assert_eq!(losses(p, &nested, &batch()), expected, "p={p}");
    }
}

#[test]
fn types_of_layers_are_named_for_patterns() {
    let layers = Layers::<Tensor<2>, _>::new()
        .layer(|d| Dense { linear: linear(0, d) })
        .with(|d| linear(1, d), |linear, x| linear.forward(x))
        .map(relu)
        .map(|x| x * 2.0)
        .try_map(|x: Tensor<2>| if x.dims()[0] > 0 { Ok(x) } else { Err("no row") });
    let names: Vec<_> = layers.specs().iter().map(LayerSpec::type_name).collect();
    assert_eq!(names, ["Dense", "Linear", "relu", "closure", "closure"]);
    let pointer: fn(f64) -> f64 = |x| x;
    assert_eq!(LayerSpec::map(pointer).type_name(), "fn");
}

/// A function that fails, or panics, is named by index, name and type on every rank.
#[test]
fn a_failing_function_is_named() {
    quiet_ranks();
    let failing = |fails: bool| {
        Layers::<Tensor<2>, _>::new()
            .layer(|d| Dense { linear: linear(0, d) })
            .try_map(move |x: Tensor<2>| {
                assert!(fails, "no such value");
                if x.dims()[0] == 2 { Err("two rows") } else { Ok(x) }
            })
            .named("check")
    };
    for (fails, message) in [
        (true, "layer 1 `check` (closure) failed: two rows"),
        (false, "layer 1 `check` (closure) panicked: no such value"),
    ] {
        let layers = failing(fails);
        let result = World::local(2).unwrap().run(move |rank| {
            let loss = |y: Tensor<2>, t: Tensor<2>| (y - t).mean();
            let module = PipelineModule::builder(&layers, loss).partition("uniform".parse()?).build(&rank)?;
            let config = TrainConfig::new(0.1);
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), config)?;
            engine.train_batch(&mut batch().into_iter()).map(|_| ()).map_err(EngineError::from)
        });
        let error = result.unwrap_err().to_string();
        assert!(error.contains(message) && error.contains("rank 1, stage 1, micro-batch 0"), "{error}");
    }
}

#[test]
fn a_name_that_stands_twice_is_refused() {
    let dense = |d: &Device| Dense { linear: linear(0, d) };
    let named = || Layers::new().layer(dense).named("a").repeat(3, move |_, d| dense(d)).named("b");
    let names = |layers: &Layers<_, _>| {
        layers.specs().iter().map(|s| s.name().map(str::to_owned)).collect::<Vec<_>>()
    };
    let some = |name: &str| Some(name.to_owned());
    assert_eq!(names(&named()), [some("a"), some("b.0"), some("b.1"), some("b.2")]);
    let whole = named().then(named()).named("c").layer(dense);
    assert_eq!(names(&whole)[4..], [some("c.a"), some("c.b.0"), some("c.b.1"), some("c.b.2"), None]);
    assert_eq!(names(&named().repeat(0, move |_, d| dense(d)).named("nothing")), names(&named()));
    assert_eq!(losses(2, &whole, &batch()).len(), 3);

    let error = refused(&named().then(named()));
    assert_eq!(error.to_string(), "layers 0 and 4 have the name `a`: give every layer another name, or none");
}

/// Recompute and exclusive runs choose layers by name or by number: one must not look like the other.
#[test]
fn a_name_that_is_empty_or_looks_like_a_number_is_refused() {
    let dense = |d: &Device| Dense { linear: linear(0, d) };
    for name in ["", "7", "layer_", "layer_001"] {
        let error = refused(&Layers::new().layer(dense).layer(dense).named(name));
        assert!(matches!(&error, BuildError::NotAName { layer: 0 | 1, .. }), "{name:?}: {error}");
    }
    let names = ["layer_one", "l1", "1.a"];
    for name in names {
        assert_eq!(losses(2, &Layers::new().layer(dense).layer(dense).named(name), &batch()).len(), 3);
    }
}

#[test]
fn dynamic_lists_run_like_typed_ones_and_name_the_first_misfit() {
    let typed = Layers::new().repeat(2, |i, d| Dense { linear: linear(i, d) });
    let mut list: LayerList = (0..2)
        .flat_map(|i| {
            let module = move |d: &Device| linear(i, d);
            [
                LayerSpec::with(module, |linear: &Linear, x: Tensor<2>| linear.forward(x)),
                LayerSpec::map(relu::<2>),
            ]
        })
        .collect();
    let layers = list.typed::<Tensor<2>, Tensor<2>>().unwrap();
    for p in 1..=4 {
        assert_eq!(losses(p, &layers, &batch()), losses(1, &typed, &batch()));
    }

    let error = list.typed::<Tensor<3>, Tensor<2>>().unwrap_err();
    assert!(matches!(&error, LayerTypeError::Input { layer, .. } if layer.index == 0), "{error}");
    let error = list.typed::<Tensor<2>, Tensor<2, Int>>().unwrap_err();
    assert!(matches!(&error, LayerTypeError::Output { layer, .. } if layer.index == 3), "{error}");
    list.push(Layers::new().map(|x: f64| x).named("odd"));
    list.push(LayerSpec::map(relu::<2>));
    let error = list.typed::<Tensor<2>, Tensor<2>>().unwrap_err();
    let LayerTypeError::Neighbours { first, second, gives, takes } = &error else { panic!("{error}") };
    assert_eq!(
        (first.to_string(), second.to_string()),
        ("layer 3 (relu)".into(), "layer 4 `odd` (closure)".into())
    );
    assert!(gives.contains("Tensor") && *takes == "f64", "{error}");

    let empty = LayerList::new();
    assert!(empty.is_empty() && empty.typed::<f64, f64>().unwrap().is_empty());
    assert!(matches!(empty.typed::<f64, i64>(), Err(LayerTypeError::Empty { .. })));
}

/// A layer that takes whatever comes fits everywhere; what it gives is checked when it comes.
#[test]
fn a_layer_over_trees_fits_any_neighbour() {
    quiet_ranks();
    use brigade_engine::{AnyTensor, wire::Tree};
    let mut list = LayerList::from(Layers::new().layer(|d| Dense { linear: linear(0, d) }));
    list.push(LayerSpec::map(|tree: Tree<AnyTensor>| tree));
    list.push(Layers::new().layer(|d| Dense { linear: linear(1, d) }));
    let plain = Layers::new().repeat(2, |i, d| Dense { linear: linear(i, d) });
    let expected = losses(1, &plain, &batch());
    assert_eq!(losses(3, &list.typed().unwrap(), &batch()), expected);

    list.push(LayerSpec::map(|_: Tree<AnyTensor>| Tree::<AnyTensor>::I64(3)));
    list.push(Layers::new().layer(|d| Dense { linear: linear(2, d) }));
    let layers = list.typed::<Tensor<2>, Tensor<2>>().unwrap();
    let result = World::local(1).unwrap().run(move |rank| {
        let loss = |y: Tensor<2>, t: Tensor<2>| (y - t).mean();
        let module = PipelineModule::builder(&layers, loss).build(&rank)?;
        let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))?;
        engine.train_batch(&mut batch().into_iter()).map(|_| ()).map_err(EngineError::from)
    });
    let error = result.unwrap_err().to_string();
    assert!(error.contains("layer 4 (Dense) and the value at its input do not fit"), "{error}");
}

#[derive(Module, Debug)]
struct Tokens {
    tokens: Embedding,
}

impl Layer for Tokens {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;
    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        self.tokens.forward(ids)
    }
}

fn tokens(d: &Device) -> Tokens {
    Tokens { tokens: EmbeddingConfig::new(7, 4).init(d) }
}

fn unembed(tokens: &Tokens, x: Tensor<3>) -> Tensor<3> {
    x.matmul(tokens.tokens.weight.val().transpose().unsqueeze())
}

fn tie_error(error: &BuildError) -> &TieError {
    match error {
        BuildError::TieBuilder(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_key_gives_a_layer_its_module_or_an_error_that_says_what_there_is() {
    let error = refused(
        &Layers::new()
            .tied("embedding", ["tokens.weight"], tokens)
            .tied_with("embeding", unembed)
            .named("head"),
    );
    assert_eq!(
        error.to_string(),
        "layer 1 `head` (Tokens) is tied to `embeding`, which no layer builds: the keys with a builder are [\"embedding\"]"
    );
    let error = refused(
        &Layers::new()
            .tied("embedding", ["tokens.weight"], tokens)
            .tied_with("embedding", |linear: &Linear, x: Tensor<3>| linear.forward(x)),
    );
    let TieError::ModuleType { layer, wanted, builder, built } = tie_error(&error) else { panic!("{error}") };
    assert_eq!((layer.index, builder.index), (1, 0));
    assert!(wanted.ends_with("Linear") && built.ends_with("Tokens"), "{error}");
    // Two builders for one key: which of them is meant?
    let ids = |_: Tensor<3>| Tensor::<2, Int>::zeros([1, 1], &Device::flex());
    let twice =
        Layers::new().tied("e", ["tokens.weight"], tokens).map(ids).tied("e", ["tokens.weight"], tokens);
    let error = refused(&twice.tied_with("e", unembed));
    let TieError::TwoBuilders { layer, builders, .. } = tie_error(&error) else { panic!("{error}") };
    assert_eq!((layer.index, builders.iter().map(|b| b.index).collect::<Vec<_>>()), (3, vec![0, 2]));
    // One specification at several places has one builder.
    let embedding = TiedLayerSpec::new("e", ["tokens.weight"], tokens);
    let copies = Layers::new().then(embedding.layer()).map(ids).then(embedding.clone().layer());
    let alone = build(&Layers::new().then(embedding.layer())).expect("one layer");
    assert_eq!(build(&copies.tied_with("e", unembed)).expect("one builder"), alone, "shared by all three");
}
