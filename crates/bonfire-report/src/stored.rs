//! Reads and writes the folder of a run.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};

use crate::{Curve, PageError, Point, Report, page};

impl Report {
    /// Writes `report.txt`, `report.json` and `report.html` into `folder`, which is made if it does not exist. Where
    /// the folder has a log, they have all its curves: those of a run that this one resumed, too. For one rank: all
    /// have the same report.
    ///
    /// # Errors
    /// [`PageError::Unwritable`] or [`PageError::Unreadable`].
    pub fn write(&self, folder: impl AsRef<Path>) -> Result<(), PageError> {
        let folder = folder.as_ref();
        let unwritable = |path| move |source| PageError::Unwritable { path, source };
        let write = |name: &str, content: &str| {
            let path = folder.join(name);
            fs::write(&path, content).map_err(unwritable(path))
        };
        fs::create_dir_all(folder).map_err(unwritable(folder.to_owned()))?;
        let mut report = self.clone();
        if let Some(curves) = curves(folder)? {
            report.curves = curves;
        }
        let json = serde_json::to_string_pretty(&report).expect("a report has text for keys");
        write("report.txt", &report.to_string())?;
        write("report.json", &json)?;
        write("report.html", &page(&[(report.title.clone(), report)]))
    }

    /// Reads the run that has written into `folder`. One that continues, or ended before its report, has its curves
    /// and little else.
    ///
    /// # Errors
    /// [`PageError::NoRun`], [`PageError::Unreadable`] or [`PageError::Malformed`].
    pub fn read(folder: impl AsRef<Path>) -> Result<Self, PageError> {
        let folder = folder.as_ref();
        let curves = curves(folder)?;
        let path = folder.join("report.json");
        let mut report = match read(&path)? {
            Some(text) => {
                let report: Result<Self, _> = serde_json::from_str(&text);
                report.map_err(|source| PageError::Malformed { path, source })?
            }
            None if curves.is_some() => Self {
                title: folder.display().to_string(),
                unit: "samples".to_owned(),
                ..Self::default()
            },
            None => {
                let path = folder.to_owned();
                return Err(PageError::NoRun { path });
            }
        };
        report.folder = Some(folder.to_owned());
        if let Some(curves) = curves {
            report.curves = curves;
        }
        Ok(report)
    }
}

/// The curves of `log.jsonl`; `None` if there is none. Values beyond the step of a resumption are dropped as soon as
/// they are measured again.
fn curves(folder: &Path) -> Result<Option<Vec<Curve>>, PageError> {
    let Some(text) = read(&folder.join("log.jsonl"))? else {
        return Ok(None);
    };
    let mut curves: Vec<Curve> = Vec::new();
    // The last line of a run that was killed may be the beginning of one.
    let lines = text.lines().map(serde_json::from_str::<Map<String, Value>>);
    for line in lines.filter_map(Result::ok) {
        let step = line.get("step").and_then(Value::as_u64).unwrap_or_default();
        for (tag, value) in &line {
            if tag == "step" || tag == "unix_seconds" {
                continue;
            }
            let points = Curve::points_of(&mut curves, tag);
            points.truncate(points.partition_point(|point| point.step < step));
            let value = value.as_f64().unwrap_or(f64::NAN);
            points.push(Point { step, value });
        }
    }
    Ok(Some(curves))
}

fn read(path: &Path) -> Result<Option<String>, PageError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => {
            let path = path.to_owned();
            Err(PageError::Unreadable { path, source })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ModelFlops, TimeSplit};

    fn losses(report: &Report) -> Vec<(u64, f64)> {
        let points = report.curve("loss").iter();
        points.map(|point| (point.step, point.value)).collect()
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let point = |step, value| Point { step, value };
        let report = Report {
            title: "a <small> model".to_owned(),
            facts: vec![("text".to_owned(), "own".to_owned())],
            unit: "tokens".to_owned(),
            flops: Some(ModelFlops::per_sample(6e6).with_peak(1e12)),
            total: Duration::from_millis(1500),
            ranks: vec![TimeSplit { data: Duration::from_millis(250), ..TimeSplit::default() }],
            curves: vec![Curve {
                tag: "loss".to_owned(),
                points: vec![point(1, 2.5), point(2, f64::INFINITY)],
            }],
            ..Report::default()
        };
        report.write(folder.path()).unwrap();
        let read = Report::read(folder.path()).unwrap();
        // JSON has no infinity.
        assert!(read.curve("loss")[1].value.is_nan());
        let mut expected = report;
        expected.folder = Some(folder.path().to_owned());
        expected.curves = read.curves.clone();
        assert_eq!(format!("{read:?}"), format!("{expected:?}"));
    }

    #[test]
    fn a_run_without_a_report_has_the_curves_of_its_log_and_a_resumption_counts() {
        let folder = tempfile::tempdir().unwrap();
        let log = "{\"step\":1,\"unix_seconds\":0.5,\"loss\":4.0,\"accuracy\":0.5}\n\
                   {\"step\":2,\"loss\":3.0}\n{\"step\":3,\"loss\":null}\n\
                   {\"step\":2,\"loss\":2.5}\n{\"step\":3,\"lo";
        fs::write(folder.path().join("log.jsonl"), log).unwrap();
        let report = Report::read(folder.path()).unwrap();
        assert_eq!(losses(&report), [(1, 4.0), (2, 2.5)]);
        assert_eq!(report.curve("accuracy").len(), 1);
        assert_eq!(report.curve("unix_seconds"), []);
        report.write(folder.path()).unwrap();
        assert_eq!(Report::read(folder.path()).unwrap().curves, report.curves);
    }

    #[test]
    fn a_folder_without_a_run_and_a_file_that_is_no_report_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Report::read(folder.path()).unwrap_err();
        assert!(error.to_string().starts_with("there is no run in "));
        fs::write(folder.path().join("report.json"), "[1]").unwrap();
        let error = Report::read(folder.path()).unwrap_err();
        assert!(
            matches!(error, PageError::Malformed { path, .. } if path.ends_with("report.json"))
        );
    }
}
