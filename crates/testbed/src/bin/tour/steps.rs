//! Numbered steps, told as they happen.

use std::future::Future;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};

/// The tour so far.
pub(crate) struct Tour {
    begun: Instant,
    taken: usize,
    passed: usize,
}

impl Default for Tour {
    fn default() -> Self {
        Self { begun: Instant::now(), taken: 0, passed: 0 }
    }
}

impl Tour {
    /// One step: what it shows, what a user would type for it besides the commands of the product, which are
    /// told as they are run, and the doing, which gives what to show of the outcome.
    pub(crate) async fn step<T>(
        &mut self,
        proves: &str,
        command: &str,
        doing: impl Future<Output = Result<(T, String)>>,
    ) -> Result<T> {
        self.taken += 1;
        say(&format!("\n{}. {proves}", self.taken));
        TYPED.lock().unwrap_or_else(PoisonError::into_inner).clear();
        command.lines().for_each(typed);
        let begun = Instant::now();
        let (value, shown) = doing.await.with_context(|| format!("step {}: {proves}", self.taken))?;
        for line in shown.lines() {
            say(&format!("     {line}"));
        }
        say(&format!("   ✓ {:.1} s", begun.elapsed().as_secs_f64()));
        self.passed += 1;
        Ok(value)
    }

    /// The count at the end.
    pub(crate) fn close(&self, ended: Result<()>) -> ExitCode {
        let seconds = self.begun.elapsed().as_secs();
        match ended {
            Ok(()) => {
                say(&format!(
                    "\n{}/{} steps in {seconds} s. Everything it started has been removed.",
                    self.passed, self.taken
                ));
                say("Look around: tarbet --help, docs/guides/reach.md, or make demo KEEP=1 to stay inside.");
                ExitCode::SUCCESS
            }
            Err(error) => {
                say(&format!(
                    "\n{}/{} steps in {seconds} s; the tour stopped: {error:#}",
                    self.passed, self.taken
                ));
                ExitCode::FAILURE
            }
        }
    }
}

/// The commands that were told in this step.
static TYPED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A command, told once in each step however often it is tried.
pub(crate) fn typed(line: &str) {
    let mut before = TYPED.lock().unwrap_or_else(PoisonError::into_inner);
    if !before.iter().any(|told| told == line) {
        say(&format!("   $ {line}"));
        before.push(line.to_owned());
    }
}

/// A heading.
pub(crate) fn chapter(title: &str) {
    say(&format!("\n── {title} ──"));
}

/// Something worth knowing between steps.
pub(crate) fn note(text: &str) {
    say(&format!("   {text}"));
}

#[expect(clippy::print_stdout, reason = "a tour is there to be read")]
fn say(text: &str) {
    println!("{text}");
}
