//! DeepSpeed's `optimizer` section: a name, and parameters with PyTorch's or DeepSpeed's defaults.

use super::object::Object;
use crate::config::TrainConfig;
use crate::error::ConfigError;
use crate::optimizer::{
    AdaGradSettings, AdamSettings, AdamWSettings, LambSettings, LionSettings, MuonSettings, OptimizerConfig,
    RmsPropSettings, SgdSettings,
};

/// Reads the optimizer and the learning rate, which stands among its parameters.
pub(super) fn read(root: &mut Object<'_>, config: &mut TrainConfig) -> Result<(), ConfigError> {
    let Some(mut section) = root.object("optimizer")? else { return Ok(()) };
    let name = section.text("type")?;
    let _ = section.flag("legacy_fusion")?;
    let mut params = match section.object("params")? {
        Some(params) => params,
        None => section.empty("params"),
    };
    let Some(name) = name else {
        return Err(ConfigError::Value {
            path: "optimizer.type".to_owned(),
            found: "absent".to_owned(),
            expected: "the name of an optimizer, such as \"AdamW\"".to_owned(),
        });
    };
    let (optimizer, learning_rate) = by_name(&name, &mut params)?;
    config.optimizer = Some(optimizer);
    config.learning_rate = params.number("lr")?.unwrap_or(learning_rate);
    params.finish();
    section.finish();
    Ok(())
}

/// The optimizer, and its learning rate where none is given.
fn by_name(name: &str, params: &mut Object<'_>) -> Result<(OptimizerConfig, f64), ConfigError> {
    Ok(match name.to_ascii_lowercase().as_str() {
        kind @ ("adam" | "adamw") => (adam(kind == "adamw", params)?, 1e-3),
        "sgd" => (
            OptimizerConfig::Sgd(SgdSettings {
                momentum: params.number("momentum")?.unwrap_or(0.0),
                dampening: params.number("dampening")?.unwrap_or(0.0),
                nesterov: params.flag("nesterov")?.unwrap_or(false),
                weight_decay: params.number("weight_decay")?.unwrap_or(0.0),
            }),
            1e-3,
        ),
        "adagrad" => (
            OptimizerConfig::AdaGrad(AdaGradSettings {
                lr_decay: params.number("lr_decay")?.unwrap_or(0.0),
                epsilon: params.number("eps")?.unwrap_or(1e-10),
                weight_decay: params.number("weight_decay")?.unwrap_or(0.0),
            }),
            1e-2,
        ),
        "rmsprop" => (
            OptimizerConfig::RmsProp(RmsPropSettings {
                alpha: params.number("alpha")?.unwrap_or(0.99),
                momentum: params.number("momentum")?.unwrap_or(0.0),
                epsilon: params.number("eps")?.unwrap_or(1e-8),
                centered: params.flag("centered")?.unwrap_or(false),
                weight_decay: params.number("weight_decay")?.unwrap_or(0.0),
            }),
            1e-2,
        ),
        "lamb" => {
            let [beta_1, beta_2] = params.pair("betas")?.unwrap_or([0.9, 0.999]);
            for bound in ["max_coeff", "min_coeff"] {
                if params.number(bound)?.is_some() {
                    params.differs(bound, "the ratio of a layer's norms is not bounded");
                }
            }
            let settings = LambSettings {
                beta_1,
                beta_2,
                epsilon: params.number("eps")?.unwrap_or(1e-8),
                weight_decay: params.number("weight_decay")?.unwrap_or(0.0),
            };
            (OptimizerConfig::Lamb(settings), 1e-3)
        }
        "lion" => {
            let [beta_1, beta_2] = params.pair("betas")?.unwrap_or([0.9, 0.99]);
            let weight_decay = params.number("weight_decay")?.unwrap_or(0.0);
            (OptimizerConfig::Lion(LionSettings { beta_1, beta_2, weight_decay }), 1e-4)
        }
        "muon" => {
            let settings = MuonSettings {
                momentum: params.number("momentum")?.unwrap_or(0.95),
                weight_decay: params.number("weight_decay")?.unwrap_or(0.0),
                ..MuonSettings::default()
            };
            (OptimizerConfig::Muon(settings), 2e-2)
        }
        _ => {
            return Err(ConfigError::Value {
                path: "optimizer.type".to_owned(),
                found: format!("\"{name}\""),
                expected: "one of Adam, AdamW, SGD, Adagrad, RMSprop, Lamb, Lion and Muon".to_owned(),
            });
        }
    })
}

/// DeepSpeed takes "Adam" for AdamW unless `adam_w_mode` is off; PyTorch's AdamW decays by 0.01.
fn adam(named_w: bool, params: &mut Object<'_>) -> Result<OptimizerConfig, ConfigError> {
    let decoupled = params.flag("adam_w_mode")?.unwrap_or(true) || named_w;
    let torch = params.flag("torch_adam")?.unwrap_or(false);
    let [beta_1, beta_2] = params.pair("betas")?.unwrap_or([0.9, 0.999]);
    let epsilon = params.number("eps")?.unwrap_or(1e-8);
    let decay = if torch && decoupled { 0.01 } else { 0.0 };
    let weight_decay = params.number("weight_decay")?.unwrap_or(decay);
    let amsgrad = params.flag("amsgrad")?.unwrap_or(false);
    if params.flag("bias_correction")? == Some(false) {
        let reason = "the means are always corrected for their start at 0".to_owned();
        return Err(ConfigError::Unsupported { path: params.path("bias_correction"), reason });
    }
    Ok(if decoupled {
        let cautious_weight_decay = false;
        OptimizerConfig::AdamW(AdamWSettings {
            beta_1,
            beta_2,
            epsilon,
            weight_decay,
            amsgrad,
            cautious_weight_decay,
        })
    } else {
        OptimizerConfig::Adam(AdamSettings { beta_1, beta_2, epsilon, weight_decay, amsgrad })
    })
}
