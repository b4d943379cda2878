//! What a training came to: printed at the end and kept as text, JSON and a curve.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::curve::{self, Point};

/// Where the time of a training went, on the rank that reports it.
///
/// The parts do not overlap; what is left of the total is start-up, progress lines and sampling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TimeSplit {
    /// Drawing windows and copying them to the device.
    #[serde(serialize_with = "seconds")]
    pub data: Duration,
    /// Forward and backward, with all communication that hides behind them.
    #[serde(serialize_with = "seconds")]
    pub forward_backward: Duration,
    /// Waiting for communication that backward did not hide.
    #[serde(serialize_with = "seconds")]
    pub exposed_communication: Duration,
    /// Clipping and the optimizer.
    #[serde(serialize_with = "seconds")]
    pub optimizer: Duration,
    /// Validation.
    #[serde(serialize_with = "seconds")]
    pub evaluation: Duration,
}

/// A finished training.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The text's name.
    pub data: String,
    /// Trained numbers in the model.
    pub parameters: usize,
    /// Ranks that trained together.
    pub world_size: usize,
    /// The device of the reporting rank.
    pub device: String,
    /// Windows in a step on each rank.
    pub batch: usize,
    /// Windows in a step on all ranks together.
    pub global_batch: usize,
    /// Characters in a window.
    pub context: usize,
    /// Steps done.
    pub steps: usize,
    /// Characters that all ranks trained on, per second of training (evaluation not counted).
    pub tokens_per_second: f64,
    /// The parts of the time.
    pub seconds: TimeSplit,
    /// From the first step to the last, evaluations included.
    #[serde(serialize_with = "seconds")]
    pub total_seconds: Duration,
    /// Mean training loss since the progress line before.
    pub training_loss: Vec<Point>,
    /// Validation loss, over all ranks by sample count.
    pub validation_loss: Vec<Point>,
}

impl TimeSplit {
    /// All parts but evaluation.
    pub fn training(&self) -> Duration {
        self.data + self.forward_backward + self.exposed_communication + self.optimizer
    }

    fn parts(&self) -> [(&'static str, Duration); 5] {
        [
            ("data", self.data),
            ("forward+backward", self.forward_backward),
            ("exposed communication", self.exposed_communication),
            ("optimizer", self.optimizer),
            ("evaluation", self.evaluation),
        ]
    }
}

impl Report {
    /// Writes `report.txt`, `report.json` and `loss.svg`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let write = |name: &str, content: &str| {
            let path = folder.join(name);
            fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
        };
        fs::create_dir_all(folder).with_context(|| {
            format!(
                "cannot create {}; choose another --report-dir",
                folder.display()
            )
        })?;
        let title = format!(
            "{} parameters, {} x batch {}",
            self.parameters,
            ranks(self.world_size),
            self.batch
        );
        write("report.txt", &self.to_string())?;
        write("report.json", &serde_json::to_string_pretty(self)?)?;
        write(
            "loss.svg",
            &curve::svg(&title, &self.training_loss, &self.validation_loss),
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = |points: &[Point]| match points.last() {
            Some(point) => format!("{:.4} after step {}", point.loss, point.step),
            None => "none".to_string(),
        };
        let Self {
            world_size,
            batch,
            global_batch,
            context,
            ..
        } = self;
        let batch = format!(
            "{} x {batch} windows = {global_batch} windows of {context} characters",
            ranks(*world_size)
        );
        let whole = self.total_seconds.as_secs_f64();
        let rows = [
            ("text", self.data.clone()),
            ("parameters", self.parameters.to_string()),
            ("device", self.device.clone()),
            ("global batch", batch),
            ("steps", self.steps.to_string()),
            ("training loss", last(&self.training_loss)),
            ("validation loss", last(&self.validation_loss)),
            (
                "tokens per second",
                format!("{:.0}", self.tokens_per_second),
            ),
            ("time", format!("{whole:.1} s")),
        ];
        for (name, value) in rows {
            writeln!(f, "{name:<24} {value}")?;
        }
        for (name, part) in self.seconds.parts() {
            let (part, percent) = (
                part.as_secs_f64(),
                100.0 * part.div_duration_f64(self.total_seconds),
            );
            writeln!(f, "  {name:<22} {part:6.1} s  {percent:5.1} %")?;
        }
        Ok(())
    }
}

/// So many ranks, in words.
pub fn ranks(world_size: usize) -> String {
    match world_size {
        1 => "1 rank".to_string(),
        more => format!("{more} ranks"),
    }
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let second = Duration::from_secs(1);
        Report {
            data: "a text".to_string(),
            parameters: 804_096,
            world_size: 2,
            device: "cpu".to_string(),
            batch: 6,
            global_batch: 12,
            context: 64,
            steps: 100,
            tokens_per_second: 12_345.6,
            seconds: TimeSplit {
                data: second,
                forward_backward: 5 * second,
                exposed_communication: second,
                optimizer: second,
                evaluation: 2 * second,
            },
            total_seconds: 10 * second,
            training_loss: vec![Point {
                step: 100,
                loss: 2.5,
            }],
            validation_loss: vec![
                Point { step: 0, loss: 4.2 },
                Point {
                    step: 100,
                    loss: 2.6,
                },
            ],
        }
    }

    #[test]
    fn the_text_names_what_was_asked_for() {
        let text = report().to_string();
        for part in [
            "2 ranks x 6 windows = 12 windows",
            "steps                    100",
            "2.6000 after step 100",
            "  forward+backward          5.0 s   50.0 %",
            "  exposed communication     1.0 s   10.0 %",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn all_three_files_are_written_and_the_json_reads_back() {
        let inner = Path::new(env!("OUT_DIR")).join("test-report/new");
        report().write(&inner).unwrap();
        let json = fs::read_to_string(inner.join("report.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["global_batch"], 12);
        assert_eq!(json["seconds"]["forward_backward"], 5.0);
        assert_eq!(json["validation_loss"][1]["loss"], 2.6);
        assert!(
            fs::read_to_string(inner.join("loss.svg"))
                .unwrap()
                .starts_with("<svg")
        );
        assert_eq!(
            fs::read_to_string(inner.join("report.txt")).unwrap(),
            report().to_string()
        );
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let below_a_file = Path::new(env!("OUT_DIR")).join("corpus.txt/below");
        let message = report().write(&below_a_file).unwrap_err().to_string();
        assert!(message.contains("--report-dir"), "{message}");
    }
}
