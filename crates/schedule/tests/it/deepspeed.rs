//! DeepSpeed's own streams, instruction by instruction.

use brigade_schedule::{
    Capacity, DeepSpeedMode, Instruction, PipeRank, Queued, ScheduleError, Shape, Steps, check,
    deepspeed_data_parallel, deepspeed_dual_pipe_v, deepspeed_inference, deepspeed_inference_program,
    deepspeed_train, deepspeed_train_program,
};
use serde_json::{Value, json};

use crate::golden::{Golden, list, number, text};

fn shape(case: &Value) -> Shape {
    Shape { n_ranks: number(&case["stages"]), n_micro_batches: number(&case["micro_batches"]) }
}

fn rank(case: &Value) -> PipeRank {
    PipeRank(number(&case["stage_id"]))
}

/// The instructions as the golden file writes them: name and buffer.
fn written(stream: &Steps) -> Value {
    let instruction = |step: &Instruction| json!([step.name(), step.visit().map(|(.., buffer)| buffer.0)]);
    let step = |step: &Vec<Instruction>| step.iter().map(instruction).collect::<Value>();
    stream.steps.iter().map(step).collect()
}

/// The same with the phase, which loads, commits and collectives do not have.
fn written_queued(stream: &Steps<Queued>, n_ranks: u32) -> Value {
    let instruction = |queued: &Queued| match queued {
        Queued::CommitP2P => json!(["CommitP2P", null, null]),
        Queued::Instruction(step) => {
            let phase = step.visit().map(|(stage, ..)| u32::from(stage.0 >= n_ranks));
            let phase = phase.filter(|_| !matches!(step, Instruction::LoadMicroBatch { .. }));
            json!([step.name(), step.visit().map(|(.., buffer)| buffer.0), phase])
        }
    };
    let step = |step: &Vec<Queued>| step.iter().map(instruction).collect::<Value>();
    stream.steps.iter().map(step).collect()
}

#[test]
fn train_inference_and_data_parallel_streams() {
    let golden = Golden::open("schedule.json");
    for case in golden.cases("train") {
        let stream = deepspeed_train(shape(case), rank(case)).expect("a stream");
        assert_eq!(written(&stream), case["steps"], "{case}");
        assert_eq!(json!(stream.n_buffers), case["num_pipe_buffers"]);
    }
    for case in golden.cases("inference") {
        let stream = deepspeed_inference(shape(case), rank(case)).expect("a stream");
        assert_eq!(written(&stream), case["steps"], "{case}");
        assert_eq!(json!(stream.n_buffers), case["num_pipe_buffers"]);
    }
    for case in golden.cases("data_parallel") {
        let stream = deepspeed_data_parallel(shape(case).n_micro_batches).expect("a stream");
        assert_eq!(written(&stream), case["steps"], "{case}");
        assert_eq!(json!(stream.n_buffers), case["num_pipe_buffers"]);
    }
}

/// DeepSpeed makes streams for no micro-batch and for ranks that do not exist. We refuse both; a rank means
/// nothing to the data-parallel stream, which is the same.
#[test]
fn degenerate_inputs_are_refused() {
    for case in Golden::open("schedule.json").cases("edge") {
        let shape = shape(case);
        // A negative rank cannot even be asked for; it takes the place of one that does not exist.
        let rank = case["stage_id"].as_u64().and_then(|rank| u32::try_from(rank).ok()).unwrap_or(u32::MAX);
        let stream = match text(&case["schedule"]) {
            "TrainSchedule" => deepspeed_train(shape, PipeRank(rank)),
            "InferenceSchedule" => deepspeed_inference(shape, PipeRank(rank)),
            "DataParallelSchedule" => deepspeed_data_parallel(shape.n_micro_batches),
            other => panic!("unknown schedule {other}"),
        };
        let in_world = rank < shape.n_ranks || text(&case["schedule"]) == "DataParallelSchedule";
        match stream {
            Err(ScheduleError::NoMicroBatches) => assert_eq!(shape.n_micro_batches, 0, "{case}"),
            Err(ScheduleError::NoRanks) => assert_eq!(shape.n_ranks, 0, "{case}"),
            Err(ScheduleError::NoSuchRank { .. }) => assert!(!in_world, "{case}"),
            Err(error) => panic!("{case}: {error}"),
            Ok(stream) => assert_eq!(written(&stream), case["ok"]["steps"], "{case}"),
        }
    }
}

#[test]
fn instructions_print_as_deepspeed_prints_them() {
    let golden = Golden::open("schedule.json");
    let stream = |m, p, r| {
        let steps = deepspeed_train(Shape { n_ranks: p, n_micro_batches: m }, PipeRank(r)).expect("a stream");
        steps.steps.into_iter().flatten().map(|step| step.to_string()).collect::<Vec<_>>()
    };
    let ours: Vec<String> = (0..4).flat_map(|r| stream(16, 4, r)).collect();
    for name in golden.cases("repr") {
        assert!(ours.iter().any(|ours| ours == text(name)), "nothing of ours prints as {name}");
    }
    for opcode in golden.cases("opcodes") {
        assert!(ours.iter().any(|ours| ours.split_once('(').is_some_and(|(name, _)| name == text(opcode))));
    }
    let properties = golden.value("properties");
    for (key, steps) in properties["step_to_micro_batch"].as_object().expect("a map") {
        let numbers: Vec<u32> = key.split(',').map(|n| n.parse().expect("a number")).collect();
        let [m, p, r] = numbers[..] else { panic!("three numbers in {key}") };
        let stream =
            deepspeed_train(Shape { n_ranks: p, n_micro_batches: m }, PipeRank(r)).expect("a stream");
        for (step, expected) in stream.steps.iter().zip(list(steps)) {
            let compute = step.iter().find(|step| step.compute_kind().is_some());
            let found = compute.and_then(|step| {
                let forward = matches!(step, Instruction::ForwardPass { .. });
                Some(json!([step.visit()?.1.0, forward]))
            });
            let valid = expected[0].as_i64().is_some_and(|mb| (0..i64::from(m)).contains(&mb));
            assert_eq!(found.as_ref(), valid.then_some(expected), "{key}");
        }
    }
}

#[test]
fn dual_pipe_v_streams() {
    let golden = Golden::open("schedule_dualpipev.json");
    for case in golden.cases("cases") {
        let forward_only = case["forward_only"].as_bool().expect("a flag");
        let mode = if forward_only { DeepSpeedMode::ForwardOnly } else { DeepSpeedMode::Train };
        let shape = shape(case);
        let stream = deepspeed_dual_pipe_v(shape, rank(case), mode).expect("a stream");
        assert_eq!(written_queued(&stream, shape.n_ranks), case["steps"], "{case}");
        assert_eq!(json!(stream.n_buffers), case["num_pipe_buffers"]);
    }
    for case in golden.cases("errors") {
        let stream = deepspeed_dual_pipe_v(shape(case), PipeRank(0), DeepSpeedMode::Train);
        match (stream, &case["ok"]) {
            (Ok(stream), ok) => assert_eq!(&json!(stream.n_buffers), ok, "{case}"),
            (Err(_), ok) => assert!(ok.is_null(), "{case}"),
        }
    }
}

#[test]
fn streams_are_sound_at_rendezvous() {
    for n_ranks in 1..=8 {
        for n_micro_batches in 1..=16 {
            let shape = Shape { n_ranks, n_micro_batches };
            for program in [deepspeed_train_program(shape), deepspeed_inference_program(shape)] {
                let program = program.expect("a program");
                let checked = check(program, Capacity::RENDEZVOUS);
                assert!(checked.is_ok(), "{shape:?}: {checked:?}");
            }
        }
    }
}
