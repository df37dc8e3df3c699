//! A named value reaches every later layer that uses it, in any stage, and its gradient comes back.

use brigade_engine::schedule::Schedule;
use brigade_engine::{
    BuildError, EngineError, Layers, PipelineEngine, PipelineModule, ProfileOptions, Recompute, SkipRoute,
    TrainConfig, Value, World, WorldError,
};
use burn::module::Module;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};

use crate::harness::Model;
use crate::support::quiet_ranks;
use crate::{corpus, harness};

#[test]
fn a_residual_over_all_stages_equals_the_unsplit_run() {
    let model = corpus::residual();
    assert!(model.compare_under_every_schedule(&[1, 2, 3, 4], &[1, 4]) > 100);
}

#[test]
fn the_models_own_input_skips_three_stages() {
    let model = corpus::residual_of_the_input();
    let reference = model.unsplit(4, 2);
    for route in [SkipRoute::Direct, SkipRoute::Carried] {
        for schedule in [Schedule::GPipe, Schedule::OneFOneB, Schedule::ZbH1] {
            model.compare(schedule, 3, 4, route, &reference);
        }
    }
}

#[test]
fn gradients_of_one_value_are_summed_from_all_stages_that_use_it() {
    assert!(corpus::shared().compare_under_every_schedule(&[1, 2, 3, 4], &[1, 4]) > 100);
}

#[test]
fn a_mask_arrives_at_every_stage() {
    assert!(corpus::masked().compare_under_every_schedule(&[1, 2, 4], &[4]) > 60);
}

#[test]
fn a_nest_of_skips_equals_the_unsplit_run() {
    assert!(corpus::u_net().compare_under_every_schedule(&[1, 2, 3, 4], &[4]) > 60);
}

#[test]
fn a_value_may_be_there_for_some_micro_batches_only() {
    assert!(corpus::sometimes().compare_under_every_schedule(&[1, 2, 3], &[6]) > 40);
}

#[test]
fn a_list_with_a_skip_inside_is_appended_under_three_names() {
    assert!(corpus::repeated_blocks().compare_under_every_schedule(&[1, 3], &[3]) > 20);
}

/// Gradients of one value come from its users and from the layer behind the stash, which uses it three
/// times: they add up in one order, whether a stage ends between them or not.
#[test]
fn a_layer_that_uses_a_stashed_value_more_than_once_has_the_same_numbers_at_every_split() {
    let train = |p: usize, route: SkipRoute, interval: usize| {
        let model = corpus::residual();
        let layers = Layers::new()
            .layer(|d| corpus::Dense::new(0, d))
            .stash("x", Tensor::<2>::clone)
            .map(|x: Tensor<2>| x.clone().tanh() * x.clone() + x * 0.3)
            .layer(|d| corpus::Dense::new(1, d))
            .peek("x", |y: Tensor<2>, x: Tensor<2>| y * x)
            .layer(|d| corpus::Dense::new(2, d))
            .pop("x", |y: Tensor<2>, x: Tensor<2>| y + x);
        let builder = move || {
            let builder = PipelineModule::builder(&layers, model.loss).partition("uniform".parse()?);
            Ok(builder.skips(route).recompute(Recompute::every(interval)))
        };
        harness::run("used more than once", builder, model.data, Schedule::OneFOneB, (p, 3, 2))
    };
    let whole = train(1, SkipRoute::Direct, 0);
    for p in 1..=7 {
        for route in [SkipRoute::Direct, SkipRoute::Carried] {
            for interval in [0, 1, 2] {
                assert_eq!(train(p, route, interval), whole, "p={p}, {route:?}, recompute {interval}");
            }
        }
    }
}

/// The message of a list that cannot be built.
fn refused(layers: &Layers<Tensor<2>, Tensor<2>>, route: Option<&'static str>) -> String {
    let layers = layers.clone();
    let built = World::local(1).expect("one rank").run(move |rank| {
        let loss = |y: Tensor<2>, t: Tensor<2>| (y - t).mean();
        let mut builder = PipelineModule::builder(&layers, loss);
        if let Some(name) = route {
            builder = builder.skip_route(name, SkipRoute::Carried);
        }
        builder.build(&rank)?;
        Ok::<_, EngineError>(())
    });
    match built {
        Err(WorldError::Rank { source: EngineError::Build(error @ BuildError::Skip(_)), .. }) => {
            error.to_string()
        }
        other => panic!("the list is refused, not {other:?}"),
    }
}

#[test]
fn a_list_whose_stashes_and_users_do_not_fit_is_refused_with_both_layers() {
    fn add(y: Tensor<2>, x: Tensor<2>) -> Tensor<2> {
        y + x
    }
    let stash = |name| Layers::new().stash(name, Tensor::<2>::clone);
    let says = |layers: &Layers<_, _>, text: &str| {
        let error = refused(layers, None);
        assert_eq!(error, format!("the named values of the layers do not fit: {text}"));
    };
    says(
        &stash("x"),
        "layer 0 (Stash) stashes `x`, which no later layer uses: pop or peek it, or do not stash it",
    );
    says(
        &Layers::new().pop("x", add),
        "layer 0 (Pop) uses `x`, which no layer stashes: stash it at an earlier layer",
    );
    says(
        &Layers::new().peek("x", add).named("early").then(stash("x")),
        "layer 0 `early` (Peek) uses `x`, which layer 1 (Stash) stashes later: a value flows forward only",
    );
    says(
        &stash("x").pop("x", add).then(stash("x")),
        "layer 0 (Stash) and layer 2 (Stash) both stash `x`: name them apart, or append the lists with `then_namespaced`",
    );
    says(
        &stash("x").pop("x", add).peek("x", add),
        "layer 2 (Peek) uses `x` after layer 1 (Pop) popped it: peek at it there instead",
    );
    let mistyped = stash("x").pop("x", |y: Tensor<2>, _: Option<i64>| y);
    let error = refused(&mistyped, None);
    assert!(error.contains("layer 0 (Stash) stashes `x` as ") && error.contains("layer 1 (Pop) uses it as "));
    assert!(error.contains("Tensor<2>") && error.contains("Option<i64>"), "{error}");
    let unknown = refused(&stash("x").pop("x", add), Some("y"));
    assert!(unknown.contains("no layer stashes `y`, for which a route is set; there are [\"x\"]"));
}

#[test]
fn one_skip_may_travel_otherwise_than_the_others() {
    let model = corpus::u_net();
    let reference = model.unsplit(4, 2);
    let layers = model.layers.clone();
    let builder = move || {
        let builder = PipelineModule::builder(&layers, model.loss).partition("uniform".parse()?);
        Ok(builder.skips(SkipRoute::Carried).skip_route("level1", SkipRoute::Direct))
    };
    let found = harness::run("mixed routes", builder, model.data, Schedule::OneFOneB, (4, 4, 2));
    assert_eq!(found, reference);
}

#[test]
fn outputs_of_a_prediction_have_what_skipped_stages() {
    let model = corpus::shared();
    for route in [SkipRoute::Direct, SkipRoute::Carried] {
        let (layers, loss, data) = (model.layers.clone(), model.loss, model.data);
        let all = World::local(3)
            .expect("three ranks")
            .run(move |rank| {
                let builder = PipelineModule::builder(&layers, loss).partition("uniform".parse()?);
                let module = builder.micro_batches(2).skips(route).build(&rank)?;
                let optimizer = SgdConfig::new().init();
                let mut engine = PipelineEngine::new(module, optimizer, TrainConfig::new(0.1))?;
                let mut inputs = (0..5).map(|serial| data(serial).0);
                let outputs = engine.predict_batch(&mut inputs, 5)?.expect("five inputs");
                Ok::<_, EngineError>(outputs.into_iter().map(Tensor::into_data).collect::<Vec<_>>())
            })
            .expect("the pipeline predicts");
        let plain = (model.build)(&Device::flex().autodiff()).valid();
        let expected: Vec<_> =
            (0..5).map(|serial| (model.forward)(&plain, (model.data)(serial).0).into_data()).collect();
        assert!(all.iter().all(|outputs| *outputs == expected), "{route:?}");
    }
}

#[test]
fn a_layer_that_fails_over_a_stashed_value_is_named() {
    quiet_ranks();
    for route in [SkipRoute::Direct, SkipRoute::Carried] {
        let failed = World::local(3).expect("three ranks").run(move |rank| {
            let layers = Layers::new()
                .stash("x", Tensor::<2>::clone)
                .map(|x: Tensor<2>| x * 2.0)
                .pop("x", |_: Tensor<2>, _: Tensor<2>| -> Tensor<2> { panic!("no sum today") });
            let loss = |y: Tensor<2>, t: Tensor<2>| (y - t).mean();
            let builder = PipelineModule::builder(&layers, loss).partition("uniform".parse()?).skips(route);
            let module = builder.build(&rank)?;
            let mut engine = PipelineEngine::new(module, SgdConfig::new().init(), TrainConfig::new(0.1))?;
            let x = Tensor::<2>::ones([2, 2], &Device::flex());
            engine.train_batch(&mut std::iter::once((x.clone(), x)))?;
            Ok::<_, EngineError>(())
        });
        let Err(WorldError::Rank { source: EngineError::Step(step), .. }) = failed else {
            panic!("a step fails")
        };
        assert!(step.to_string().contains("layer 2 (Pop) panicked: no sum today"), "{step}");
        assert_eq!(step.site().rank.index(), 2);
    }
}

/// Segments that run again are cut out of the graph; the values that pass by them are not.
#[test]
fn skips_pass_by_layers_that_run_again() {
    fn compare<I: Value, O: Value, T: Value, M: Module + 'static>(model: &Model<I, O, T, M>) {
        let reference = model.unsplit(3, 2);
        for (interval, p, schedule) in [
            (1, 1, Schedule::OneFOneB),
            (2, 2, Schedule::GPipe),
            (1, 3, Schedule::OneFOneB),
            (3, 3, Schedule::ZbH1),
            (1, 2, Schedule::Interleaved { n_virtual: 2 }),
        ] {
            for route in [SkipRoute::Direct, SkipRoute::Carried] {
                let (layers, loss) = (model.layers.clone(), model.loss);
                let builder = move || {
                    let builder = PipelineModule::builder(&layers, loss).partition("uniform".parse()?);
                    Ok(builder.skips(route).recompute(Recompute::every(interval)))
                };
                let found = harness::run(model.name, builder, model.data, schedule, (p, 3, 2));
                let case = format!("{}, every {interval}, {schedule}, p={p}, {route:?}", model.name);
                assert_eq!(found, reference, "{case}");
            }
        }
    }
    compare(&corpus::residual());
    compare(&corpus::shared());
    compare(&corpus::masked());
    compare(&corpus::u_net());
    compare(&corpus::sometimes());
}

/// Stashed values are alive while a list is measured, and the measurements cut it.
#[test]
fn a_list_with_skips_is_measured_and_cut_by_what_was_measured() {
    let model = corpus::u_net();
    let layers = model.layers.clone();
    let infos = layers.profile((model.data)(0).0, &ProfileOptions::default()).expect("every layer runs");
    assert_eq!(infos.len(), layers.len());
    let profiles: Vec<_> = infos.iter().map(|info| info.profile.expect("measured")).collect();
    assert!(profiles.iter().all(|profile| profile.time_ns > 0));
    // Twelve floats: rows by features.
    assert_eq!(profiles[0].output_bytes, 48);
    let pop = infos.iter().position(|info| info.type_name == "Pop").expect("a pop");
    assert_eq!((profiles[pop].output_bytes, profiles[pop].fixed_bytes), (96, 0));
    // A weight of 4 x 4 and a bias, their gradients, and two values each for the optimizer.
    assert_eq!(profiles[0].fixed_bytes, 4 * (16 + 4) * 4);
    let reference = model.unsplit(2, 2);
    let builder = move || {
        let builder = PipelineModule::builder(&layers, model.loss).partition("profile".parse()?);
        Ok(builder.profiled(infos.clone()))
    };
    let found = harness::run("by profile", builder, model.data, Schedule::OneFOneB, (3, 2, 2));
    assert_eq!(found, reference);
}

#[test]
fn measurements_of_another_list_are_refused() {
    let infos = corpus::u_net().layers.profile((corpus::u_net().data)(0).0, &ProfileOptions::default());
    let infos = infos.expect("every layer runs");
    let refused = |layers: Layers<Tensor<2>, Tensor<2>>| {
        let infos = infos.clone();
        let built = World::local(1).expect("one rank").run(move |rank| {
            let loss = |y: Tensor<2>, t: Tensor<2>| (y - t).mean();
            PipelineModule::builder(&layers, loss).profiled(infos.clone()).build(&rank)?;
            Ok::<_, EngineError>(())
        });
        built.expect_err("they are of another list").to_string()
    };
    let shorter = refused(Layers::new().layer(|d| corpus::Dense::new(0, d)));
    assert!(shorter.contains("it has 1 layers, they are of 13"), "{shorter}");
    let other = refused(Layers::new().repeat(13, corpus::Dense::new));
    assert!(other.contains("layer 1 is Dense of 20 parameters, measured was Stash of 0"), "{other}");
}
