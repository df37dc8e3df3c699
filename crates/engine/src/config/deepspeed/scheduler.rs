//! DeepSpeed's `scheduler` section.

use super::object::Object;
use crate::error::ConfigError;
use crate::optimizer::{
    LearningRateSchedule, LrRangeTest, OneCycle, WarmupCosineLr, WarmupCurve, WarmupDecayLr, WarmupLr,
};

pub(super) fn read(root: &mut Object<'_>) -> Result<Option<LearningRateSchedule>, ConfigError> {
    let Some(mut section) = root.object("scheduler")? else { return Ok(None) };
    let name = section.text("type")?;
    let mut params = match section.object("params")? {
        Some(params) => params,
        None => section.empty("params"),
    };
    let Some(name) = name else {
        section.finish();
        params.finish();
        return Ok(None);
    };
    let schedule = match name.as_str() {
        "WarmupLR" => LearningRateSchedule::WarmupLr(WarmupLr {
            warmup_min_lr: params.number("warmup_min_lr")?.unwrap_or(0.0),
            warmup_max_lr: params.number("warmup_max_lr")?,
            warmup_num_steps: params.positive("warmup_num_steps")?.unwrap_or(1000).into(),
            warmup_type: curve(&mut params)?,
        }),
        "WarmupDecayLR" => LearningRateSchedule::WarmupDecayLr(WarmupDecayLr {
            total_num_steps: total(&mut params)?,
            warmup_min_lr: params.number("warmup_min_lr")?.unwrap_or(0.0),
            warmup_max_lr: params.number("warmup_max_lr")?.unwrap_or(0.001),
            warmup_num_steps: params.positive("warmup_num_steps")?.unwrap_or(1000).into(),
            warmup_type: curve(&mut params)?,
        }),
        "WarmupCosineLR" => LearningRateSchedule::WarmupCosineLr(WarmupCosineLr {
            total_num_steps: total(&mut params)?,
            warmup_min_ratio: params.number("warmup_min_ratio")?.unwrap_or(0.0),
            warmup_num_steps: params.positive("warmup_num_steps")?.unwrap_or(1000).into(),
            cos_min_ratio: params.number("cos_min_ratio")?.unwrap_or(0.0001),
            warmup_type: curve(&mut params)?,
        }),
        "OneCycle" => one_cycle(&mut params)?,
        "LRRangeTest" => LearningRateSchedule::LrRangeTest(LrRangeTest {
            lr_range_test_min_lr: params.number("lr_range_test_min_lr")?.unwrap_or(1e-3),
            lr_range_test_step_size: params.positive("lr_range_test_step_size")?.unwrap_or(2000).into(),
            lr_range_test_step_rate: params.number("lr_range_test_step_rate")?.unwrap_or(1.0),
            lr_range_test_staircase: params.flag("lr_range_test_staircase")?.unwrap_or(false),
        }),
        _ => {
            return Err(ConfigError::Value {
                path: "scheduler.type".to_owned(),
                found: format!("\"{name}\""),
                expected: "one of WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle and LRRangeTest"
                    .to_owned(),
            });
        }
    };
    params.finish();
    section.finish();
    Ok(Some(schedule))
}

fn total(params: &mut Object<'_>) -> Result<u64, ConfigError> {
    params.required("total_num_steps")
}

fn curve(params: &mut Object<'_>) -> Result<WarmupCurve, ConfigError> {
    match params.text("warmup_type")?.as_deref() {
        None | Some("log") => Ok(WarmupCurve::Log),
        Some("linear") => Ok(WarmupCurve::Linear),
        Some(other) => Err(ConfigError::Value {
            path: params.path("warmup_type"),
            found: format!("\"{other}\""),
            expected: "\"log\" or \"linear\"".to_owned(),
        }),
    }
}

fn one_cycle(params: &mut Object<'_>) -> Result<LearningRateSchedule, ConfigError> {
    let ends = [params.number("cycle_min_lr")?, params.number("cycle_max_lr")?];
    let [Some(cycle_min_lr), Some(cycle_max_lr)] = ends else {
        return Err(ConfigError::Value {
            path: params.path("cycle_min_lr"),
            found: "absent, or `cycle_max_lr` is".to_owned(),
            expected: "both rates".to_owned(),
        });
    };
    // On in DeepSpeed unless it is turned off.
    if params.flag("cycle_momentum")? != Some(false) {
        params.differs("cycle_momentum", "momenta stay as they are");
    }
    for unused in ["cycle_min_mom", "cycle_max_mom", "decay_mom_rate"] {
        let _ = params.number(unused)?;
    }
    Ok(LearningRateSchedule::OneCycle(OneCycle {
        cycle_min_lr,
        cycle_max_lr,
        decay_lr_rate: params.number("decay_lr_rate")?.unwrap_or(0.0),
        cycle_first_step_size: params.positive("cycle_first_step_size")?.unwrap_or(2000).into(),
        cycle_second_step_size: params.positive("cycle_second_step_size")?.map(u64::from),
        cycle_first_stair_count: params.count("cycle_first_stair_count")?.unwrap_or(0).into(),
        cycle_second_stair_count: params.count("cycle_second_stair_count")?.map(u64::from),
        decay_step_size: params.count("decay_step_size")?.unwrap_or(0).into(),
    }))
}
