//! The figures of a program on several numbers of ranks: a table, a chart, and JSON.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context, ensure};
use bonfire_report::{PageError, Report, TimeSplit};
use serde::Serialize;

use crate::bench::Host;
use crate::quantity::{counted, show_seconds};
use crate::simulate::plot::{self, Against, Curve};

pub(super) const CHART: &str = "scaling.svg";

#[derive(Debug)]
pub(super) struct Run {
    pub(super) ranks: u32,
    /// From the start of the program to the end of its output.
    pub(super) program_s: f64,
    pub(super) training: Option<Training>,
}

#[derive(Debug)]
pub(super) struct Training {
    /// On the rank that took longest, without evaluation and checkpoints.
    time_s: f64,
    samples_per_second: f64,
    unit: String,
}

/// Where the times are from: the same for all runs, or they could not be compared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Source {
    Training,
    Program,
}

/// All runs so far, from the fewest ranks to the most.
#[derive(Debug)]
pub(super) struct Figures {
    command: Vec<String>,
    pub(super) runs: Vec<Run>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Row {
    ranks: u32,
    time_s: f64,
    /// Of the whole program, also where the time is another.
    program_s: f64,
    samples_per_second: Option<f64>,
    speed_up: f64,
    efficiency: f64,
}

#[derive(Debug, Serialize)]
struct Record<'a> {
    command: &'a [String],
    time: Source,
    unit: Option<&'a str>,
    runs: Vec<Row>,
    host: Host,
    version: &'static str,
}

impl Training {
    /// That of a run's folder. A run without a step has no speed.
    pub(super) fn read(folder: &Path, ranks: NonZeroU32) -> anyhow::Result<Option<Self>> {
        let report = match Report::read(folder) {
            Err(PageError::NoRun { .. }) => return Ok(None),
            report => report?,
        };
        ensure!(
            report.world_size == ranks.get() as usize,
            "{} is of a training on {}: start the program itself, without a launcher, and let it train on all ranks",
            folder.join("report.json").display(),
            counted(report.world_size, "rank")
        );
        let longest = report.ranks.iter().map(TimeSplit::training).max();
        let training = Self {
            time_s: longest.unwrap_or_default().as_secs_f64(),
            samples_per_second: report.samples_per_second,
            unit: report.unit,
        };
        let speed = training.samples_per_second;
        let is_measured = training.time_s > 0.0 && speed > 0.0 && speed.is_finite();
        Ok(is_measured.then_some(training))
    }
}

impl Figures {
    pub(super) fn new(program: &OsStr, arguments: &[OsString]) -> Self {
        let words = std::iter::once(program).chain(arguments.iter().map(OsString::as_os_str));
        let command = words.map(|word| word.to_string_lossy().into()).collect();
        Self { command, runs: Vec::new() }
    }

    pub(super) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let record = Record {
            command: &self.command,
            time: self.source(),
            unit: self.unit(),
            runs: self.rows(),
            host: Host::this(),
            version: env!("BONFIRE_VERSION"),
        };
        let json = serde_json::to_string_pretty(&record)? + "\n";
        for (name, text) in [("scaling.json", json), (CHART, self.chart())] {
            let path = folder.join(name);
            // A full disk and a signal leave what the runs before have measured.
            let draft = folder.join(format!("{name}.new"));
            fs::write(&draft, text)
                .and_then(|()| fs::rename(&draft, &path))
                .inspect_err(|_| drop(fs::remove_file(&draft)))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    fn source(&self) -> Source {
        if self.runs.iter().all(|run| run.training.is_some()) {
            Source::Training
        } else {
            Source::Program
        }
    }

    fn unit(&self) -> Option<&str> {
        let is_training = self.source() == Source::Training;
        let first = self.runs.first().filter(|_| is_training)?;
        Some(&first.training.as_ref()?.unit)
    }

    fn rows(&self) -> Vec<Row> {
        let source = self.source();
        // The time of the first run over that of this one, or this one's samples per second over the first's.
        let speed = |run: &Run| match (source, &run.training) {
            (Source::Training, Some(training)) => training.samples_per_second,
            _ => 1.0 / run.program_s.max(1e-9),
        };
        let Some(first) = self.runs.first() else {
            return Vec::new();
        };
        let row = |run: &Run| {
            let training = run.training.as_ref();
            let training = training.filter(|_| source == Source::Training);
            let speed_up = speed(run) / speed(first);
            Row {
                ranks: run.ranks,
                time_s: training.map_or(run.program_s, |training| training.time_s),
                program_s: run.program_s,
                samples_per_second: training.map(|training| training.samples_per_second),
                speed_up,
                efficiency: speed_up * f64::from(first.ranks) / f64::from(run.ranks),
            }
        };
        self.runs.iter().map(row).collect()
    }

    /// The times, and what they would be if every rank were as fast as those of the first run.
    fn chart(&self) -> String {
        let rows = self.rows();
        let curve = |name, time: fn(&Row) -> f64| {
            let points = rows.iter().map(|row| (u64::from(row.ranks), time(row)));
            Curve { name, points: points.collect() }
        };
        let curves = [
            curve("measured", |row| row.time_s),
            curve("ideal", |row| row.time_s * row.efficiency),
        ];
        let program = Path::new(&self.command[0]).file_name();
        let program = program.unwrap_or_default().display();
        let time = match self.source() {
            Source::Training => "training",
            Source::Program => "the program",
        };
        let title = format!("{program}: time of {time}");
        plot::svg(&title, Against::Ranks, &curves)
    }
}

impl fmt::Display for Figures {
    /// What the times are, and a row for each run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = self.unit().map(|unit| format!("{unit}/s"));
        match unit {
            Some(_) => writeln!(f, "# time of training, as the report of each run has it")?,
            None => {
                f.write_str("# time of the program, from its start to the end of its output\n")?
            }
        }
        if self.runs.iter().any(|run| run.training.is_some()) {
            for run in self.runs.iter().filter(|run| run.training.is_none()) {
                let on = counted(run.ranks as usize, "rank");
                writeln!(f, "# no report of a step of training on {on}")?;
            }
        }
        let cell = |text: Option<String>| text.map(|text| format!(" {text:>14}"));
        let speed = cell(unit).unwrap_or_default();
        writeln!(f, "{:>6} {:>10}{speed} {:>9} {:>11}", "ranks", "time", "speed-up", "efficiency")?;
        for row in self.rows() {
            let speed = row.samples_per_second.map(|speed| format!("{speed:.1}"));
            writeln!(
                f,
                "{:>6} {:>10}{} {:>9.2} {:>9.1} %",
                row.ranks,
                show_seconds(row.time_s),
                cell(speed).unwrap_or_default(),
                row.speed_up,
                100.0 * row.efficiency
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks, the seconds of the program, and those of training with the samples in one of them.
    type Measured = (u32, f64, Option<(f64, f64)>);

    fn figures(runs: &[Measured]) -> Figures {
        let mut figures = Figures::new("bin/train".as_ref(), &["--fast".into()]);
        for &(ranks, program_s, training) in runs {
            figures.runs.push(Run {
                ranks,
                program_s,
                training: training.map(|(time_s, samples_per_second)| Training {
                    time_s,
                    samples_per_second,
                    unit: "images".to_owned(),
                }),
            });
        }
        figures
    }

    #[test]
    fn reports_give_the_speed_and_with_it_the_speed_up_of_more_work() {
        // Twice the samples in 25 s instead of 20.
        let figures = figures(&[(1, 30.0, Some((20.0, 100.0))), (2, 40.0, Some((25.0, 160.0)))]);
        let text = figures.to_string();
        let expected = "\
# time of training, as the report of each run has it
 ranks       time       images/s  speed-up  efficiency
     1       20 s          100.0      1.00     100.0 %
     2       25 s          160.0      1.60      80.0 %
";
        assert_eq!(text, expected);
        let rows = figures.rows();
        assert_eq!((rows[1].program_s, rows[1].time_s), (40.0, 25.0));
    }

    #[test]
    fn without_a_report_of_each_run_all_times_are_the_programs() {
        let figures = figures(&[(2, 30.0, Some((20.0, 100.0))), (3, 25.0, None)]);
        let text = figures.to_string();
        let expected = "\
# time of the program, from its start to the end of its output
# no report of a step of training on 3 ranks
 ranks       time  speed-up  efficiency
     2       30 s      1.00     100.0 %
     3       25 s      1.20      80.0 %
";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_files_have_the_same_figures() {
        let folder = tempfile::tempdir().unwrap();
        let figures = figures(&[(1, 8.0, None), (4, 4.0, None)]);
        figures.write(folder.path()).unwrap();
        let read = |name| fs::read_to_string(folder.path().join(name)).unwrap();
        let json: serde_json::Value = serde_json::from_str(&read("scaling.json")).unwrap();
        assert_eq!(json["command"], serde_json::json!(["bin/train", "--fast"]));
        assert_eq!((&json["time"], &json["unit"]), (&"program".into(), &().into()));
        let row = &json["runs"][1];
        let figure = |name: &str| row[name].as_f64();
        assert_eq!((figure("speed_up"), figure("efficiency")), (Some(2.0), Some(0.5)));
        assert_eq!(row["samples_per_second"], serde_json::Value::Null);
        let svg = read(CHART);
        for part in ["train: time of the program", "measured", "ideal", "ranks"] {
            assert!(svg.contains(&format!("\n{part}\n")), "{part} is missing: {svg}");
        }
        // Two points of each of two curves.
        assert_eq!(svg.matches("<circle").count(), 4);
    }

    #[test]
    fn a_run_without_a_step_has_no_speed() {
        let folder = tempfile::tempdir().unwrap();
        let read = || Training::read(folder.path(), NonZeroU32::MIN);
        assert!(read().unwrap().is_none());
        let mut report = Report { world_size: 1, ..Report::default() };
        report.write(folder.path()).unwrap();
        assert!(read().unwrap().is_none());
        report.world_size = 2;
        report.write(folder.path()).unwrap();
        let error = read().unwrap_err().to_string();
        assert!(error.contains("of a training on 2 ranks"), "{error}");
    }

    #[test]
    fn figures_that_cannot_be_written_take_nothing_away() {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("scaling.json");
        figures(&[(1, 8.0, None)]).write(folder.path()).unwrap();
        let before = fs::read_to_string(&json).unwrap();
        // What the new file would be written to is in use.
        fs::create_dir(folder.path().join("scaling.json.new")).unwrap();
        let more = figures(&[(1, 8.0, None), (2, 4.0, None)]);
        assert!(more.write(folder.path()).is_err());
        assert_eq!(fs::read_to_string(&json).unwrap(), before);
    }
}
