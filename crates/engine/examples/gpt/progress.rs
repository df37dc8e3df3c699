//! What is shown while training: a bar on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Lines of a whole run where there is no terminal.
const N_LINES: u32 = 10;

/// Shows the steps of one rank, the one that speaks for all.
pub(crate) struct Progress {
    n_steps: u32,
    bar: Option<ProgressBar>,
}

/// What is shown of a step.
pub(crate) struct Shown {
    /// Steps done.
    pub(crate) step: u32,
    pub(crate) loss: f64,
    pub(crate) tokens_per_s: f64,
    pub(crate) bubble_measured: f64,
    pub(crate) bubble_planned: f64,
}

impl Progress {
    pub(crate) fn new(n_steps: u32) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let template = "{bar:24} {pos}/{len} {elapsed}, {eta} left, {msg}";
            let style = ProgressStyle::with_template(template);
            let bar = ProgressBar::new(u64::from(n_steps));
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Self { n_steps, bar }
    }

    /// Shows a step that is done.
    ///
    /// # Errors
    /// When the standard error is closed.
    pub(crate) fn step(&self, shown: &Shown) -> io::Result<()> {
        let step = shown.step;
        let text = format!(
            "loss {:.3}, {:.0} tokens/s, bubble {:.1} % (plan {:.1} %)",
            shown.loss,
            shown.tokens_per_s,
            shown.bubble_measured * 100.0,
            shown.bubble_planned * 100.0
        );
        if let Some(bar) = &self.bar {
            bar.set_position(u64::from(step));
            bar.set_message(text);
            return Ok(());
        }
        let line_of = |step: u32| u64::from(step) * u64::from(N_LINES) / u64::from(self.n_steps);
        if step == 1 || line_of(step) > line_of(step.saturating_sub(1)) {
            writeln!(io::stderr(), "step {step}/{}: {text}", self.n_steps)?;
        }
        Ok(())
    }

    /// Shows the loss on the text held back.
    ///
    /// # Errors
    /// When the standard error is closed.
    pub(crate) fn evaluation(&self, step: u32, loss: f64) -> io::Result<()> {
        let line = format!("step {step}/{}: loss on held-back text {loss:.3}", self.n_steps);
        match &self.bar {
            Some(bar) => {
                bar.println(line);
                Ok(())
            }
            None => writeln!(io::stderr(), "{line}"),
        }
    }

    /// Leaves the terminal as it should be.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}
