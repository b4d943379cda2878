//! Makes a page of reports that needs no other file: tables are HTML, curves are drawn by a script in it.

use std::fmt::{self, Write};
use std::time::Duration;

use serde::Serialize;

use crate::quantity::Quantity;
use crate::{Point, Report, TimeSplit};

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

#[derive(Debug, PartialEq, Serialize)]
struct Chart {
    heading: String,
    from_zero: bool,
    lines: Vec<Line>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Line {
    name: String,
    run: usize,
    /// The index of its colour: by run if there are several runs, else by curve.
    colour: usize,
    dashed: bool,
    /// Steps and values; NaN is null.
    points: Vec<(u64, f64)>,
}

type Rows = Vec<(String, String)>;

/// Returns the HTML page of one or several named runs.
pub fn page(runs: &[(String, Report)]) -> String {
    let mut page = String::new();
    write_page(&mut page, runs).expect("writing to a String cannot fail");
    page
}

fn write_page(page: &mut String, runs: &[(String, Report)]) -> fmt::Result {
    let titles: Vec<&str> = runs.iter().map(|(name, _)| name.as_str()).collect();
    let title = escape(&titles.join(" and "));
    let charts = charts(runs);
    write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         <p class=\"controls\"><label>Smoothing <input type=\"range\" id=\"smoothing\" min=\"0\" \
         max=\"0.98\" step=\"0.02\" value=\"0\"/> <output id=\"weight\">0</output></label></p>\n\
         <div class=\"charts\">\n"
    )?;
    for chart in &charts {
        writeln!(
            page,
            "<figure><figcaption>{}<label><input type=\"checkbox\"/> log scale</label></figcaption>\
             <div class=\"legend\"></div><svg role=\"img\"></svg></figure>",
            escape(&chart.heading)
        )?;
    }
    writeln!(page, "</div>\n<h2>Where the time went</h2>")?;
    write_times(page, runs)?;
    let rows = |of: fn(&Report) -> Rows| -> Vec<Rows> {
        let reports = runs.iter().map(|(_, report)| report);
        reports.map(of).collect()
    };
    for (heading, rows) in [
        ("Results", rows(Report::result_rows)),
        ("Run", rows(Report::run_rows)),
        ("Host of rank 0", rows(|report| report.host.clone())),
        ("Configuration", rows(|report| report.configuration.clone())),
    ] {
        write_table(page, heading, &titles, &rows)?;
    }
    // Nothing in it may end the element.
    let charts = serde_json::to_string(&charts).expect("a chart has text for keys");
    writeln!(
        page,
        "<script type=\"application/json\" id=\"charts\">{}</script>\n<script>\n{SCRIPT}</script>\n\
         </body>\n</html>",
        charts.replace('<', "\\u003c")
    )
}

/// A row for each name, with a column for each run. Values that differ are marked.
fn write_table(page: &mut String, heading: &str, titles: &[&str], runs: &[Rows]) -> fmt::Result {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in runs.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    writeln!(page, "<h2>{heading}</h2>\n<div class=\"wide\"><table>")?;
    if titles.len() > 1 {
        write!(page, "<tr><th></th>")?;
        for (place, title) in titles.iter().enumerate() {
            write_heading(page, place, title)?;
        }
        writeln!(page, "</tr>")?;
    }
    for name in names {
        let values: Vec<&str> = runs.iter().map(|rows| value(rows, name)).collect();
        let differs = values.iter().any(|value| *value != values[0]);
        let class = if differs { " class=\"differs\"" } else { "" };
        write!(page, "<tr{class}><th>{}</th>", escape(name))?;
        for value in values {
            write!(page, "<td>{}</td>", escape(value))?;
        }
        writeln!(page, "</tr>")?;
    }
    writeln!(page, "</table></div>")
}

/// The heading of a column, in the colour of its place.
fn write_heading(page: &mut String, place: usize, text: &str) -> fmt::Result {
    let text = escape(text);
    write!(page, "<th class=\"run\" style=\"--c:var(--c{place})\">{text}</th>")
}

/// The value of a name; the last row with it counts.
fn value<'a>(rows: &'a Rows, name: &str) -> &'a str {
    let row = rows.iter().rev().find(|(row, _)| row == name);
    row.map_or("", |(_, value)| value)
}

fn write_times(page: &mut String, runs: &[(String, Report)]) -> fmt::Result {
    let sum = |split: &TimeSplit| split.parts().iter().map(|(_, part)| *part).sum();
    let all = runs.iter().flat_map(|(_, report)| {
        let ranks = report.ranks.iter().map(sum);
        ranks.chain([report.total])
    });
    // All bars to one scale.
    let longest = all.fold(Duration::ZERO, Duration::max);
    let percent = 100.0 / longest.as_secs_f64().max(1e-9);
    writeln!(page, "<div class=\"wide\"><table class=\"times\">")?;
    write!(page, "<tr><th>rank</th><th></th>")?;
    for (place, (name, _)) in TimeSplit::default().parts().into_iter().enumerate() {
        write_heading(page, place, &format!("{name} (s)"))?;
    }
    writeln!(page, "</tr>")?;
    for (name, report) in runs {
        if runs.len() > 1 {
            writeln!(page, "<tr><td colspan=\"9\">{}</td></tr>", escape(name))?;
        }
        for (rank, split) in report.ranks.iter().enumerate() {
            write_time(page, rank, split, percent)?;
        }
    }
    writeln!(page, "</table></div>")?;
    for (name, report) in runs {
        if let Some(line) = report.straggler_line() {
            let of = if runs.len() > 1 { format!("{name}: ") } else { String::new() };
            let line = escape(&format!("{of}{line}"));
            writeln!(page, "<p class=\"straggler\">{line}</p>")?;
        }
    }
    Ok(())
}

fn write_time(page: &mut String, rank: usize, split: &TimeSplit, percent: f64) -> fmt::Result {
    write!(page, "<tr><td>{rank}</td><td class=\"bar\">")?;
    for (place, (name, part)) in split.parts().into_iter().enumerate() {
        let seconds = part.as_secs_f64();
        let (name, width) = (escape(name), seconds * percent);
        write!(
            page,
            "<i title=\"{name}: {seconds:.2} s\" style=\"width:{width:.2}%;background:var(--c{place})\"></i>"
        )?;
    }
    write!(page, "</td>")?;
    for (_, part) in split.parts() {
        write!(page, "<td class=\"number\">{:.2}</td>", part.as_secs_f64())?;
    }
    writeln!(page, "</tr>")
}

/// Charts of the curves: all losses share one; each other curve has its own. Every run has its line in each.
fn charts(runs: &[(String, Report)]) -> Vec<Chart> {
    let mut charts: Vec<Chart> = Vec::new();
    for (run, (name, report)) in runs.iter().enumerate() {
        for curve in report.ordered_curves() {
            let is_loss = curve.tag.ends_with("loss");
            let quantity = Quantity::of(&curve.tag, &report.unit);
            let heading = if is_loss { "Loss".to_owned() } else { quantity.heading() };
            let place = charts.iter().position(|chart| chart.heading == heading);
            let place = place.unwrap_or_else(|| {
                charts.push(Chart { heading, from_zero: quantity.from_zero, lines: Vec::new() });
                charts.len() - 1
            });
            let lines = &mut charts[place].lines;
            let nth = lines.iter().filter(|line| line.run == run).count();
            let title = match runs {
                [_] => quantity.title,
                _ => format!("{name}: {}", quantity.title.to_lowercase()),
            };
            let point = |point: &Point| (point.step, point.value * quantity.scale);
            lines.push(Line {
                points: curve.points.iter().map(point).collect(),
                name: title,
                run,
                colour: if runs.len() > 1 { run } else { nth },
                dashed: runs.len() > 1 && nth > 0,
            });
        }
    }
    charts
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use bonfire_testkit::assert_each_says;

    use super::*;
    use crate::{Curve, ModelFlops, Point};

    /// Whether every element that is opened is closed again, in order.
    fn is_balanced(text: &str) -> bool {
        let mut open = Vec::new();
        for tag in text.split('<').skip(1).map(|rest| rest.split('>').next().unwrap_or("")) {
            let name = tag.trim_start_matches('/').split_whitespace().next().unwrap_or("");
            match (tag.starts_with('/'), tag.ends_with('/')) {
                _ if tag.starts_with('!') => {}
                (true, _) if open.pop() != Some(name) => return false,
                (false, false) => open.push(name),
                _ => {}
            }
        }
        open.is_empty()
    }

    fn report(tags: &[&str]) -> Report {
        let curve = |tag: &&str| Curve {
            tag: (*tag).to_owned(),
            points: vec![Point { step: 10, value: 0.5 }, Point { step: 20, value: f64::NAN }],
        };
        Report {
            unit: "tokens".to_owned(),
            world_size: 2,
            samples_per_second: 3000.0,
            flops: Some(ModelFlops::per_sample(1e9).with_peak(5e12)),
            total: Duration::from_secs(10),
            ranks: vec![TimeSplit { optimizer: Duration::from_secs(5), ..TimeSplit::default() }],
            curves: tags.iter().map(curve).collect(),
            ..Report::default()
        }
    }

    /// A page without its script, which is no HTML.
    fn html(runs: &[(String, Report)]) -> (String, serde_json::Value) {
        let page = page(runs);
        let (html, rest) =
            page.split_once("<script type=\"application/json\" id=\"charts\">").unwrap();
        let (json, _) = rest.split_once("</script>").unwrap();
        let html = format!("{html}</body></html>");
        // Elements that are never closed would be; those of the head are written as XML has them.
        assert!(is_balanced(&html), "{html}");
        (html, serde_json::from_str(json).unwrap())
    }

    #[test]
    fn charts_have_titles_and_units_and_rates_begin_at_zero() {
        let tags = ["throughput", "loss", "exposed_communication_seconds", "validation_loss"];
        let (html, charts) = html(&[("a model".to_owned(), report(&tags))]);
        let parts = [
            "<figcaption>Loss<label>",
            "<figcaption>Throughput (tokens per second)<label>",
            "<figcaption>Exposed communication (ms per step)<label>",
            "<td>1500</td>",
            "<tr><th>model FLOP/s per rank</th><td>1.5 TFLOP/s</td></tr>",
            "<tr><th>model FLOPs utilisation</th><td>30.0 % of 5.0 TFLOP/s</td></tr>",
            "width:50.00%",
        ];
        assert_each_says([&html], &parts);
        assert_eq!(charts.as_array().unwrap().len(), 3);
        assert_eq!(charts[0]["from_zero"], false);
        assert_eq!(charts[0]["lines"][0]["name"], "Training loss");
        assert_eq!(charts[0]["lines"][1]["name"], "Validation loss");
        assert_eq!(charts[0]["lines"][1]["colour"], 1);
        assert_eq!(charts[1]["from_zero"], true);
        let exposed = serde_json::json!([[10, 500.0], [20, null]]);
        assert_eq!(charts[2]["lines"][0]["points"], exposed);
    }

    #[test]
    fn text_of_a_program_is_text_on_the_page() {
        let mut report = report(&["</script><b>loss"]);
        report.facts.push(("a <b>".to_owned(), "1 & 2 < 3".to_owned()));
        let (html, charts) = html(&[("a <small> \"model\"".to_owned(), report)]);
        let parts = [
            "<title>a &lt;small&gt; &quot;model&quot;</title>",
            "<tr><th>a &lt;b&gt;</th><td>1 &amp; 2 &lt; 3</td></tr>",
        ];
        assert_each_says([&html], &parts);
        assert_eq!(charts[0]["lines"][0]["name"], "</script><b>loss");
    }

    #[test]
    fn runs_side_by_side_share_pictures_and_differences_are_marked() {
        let mut runs = [("a", 2), ("b", 4)].map(|(name, ranks)| {
            let mut report = report(&["loss", "validation_loss", "throughput"]);
            report.world_size = ranks;
            report.facts.push(("model".to_owned(), "small".to_owned()));
            (name.to_owned(), report)
        });
        runs[1].1.configuration = vec![("optimizer.lr".to_owned(), "0.1".to_owned())];
        let (html, charts) = html(&runs);
        let parts = [
            "<title>a and b</title>",
            "<tr class=\"differs\"><th>ranks</th><td>2</td><td>4</td></tr>",
            "<tr><th>model</th><td>small</td><td>small</td></tr>",
            "<tr class=\"differs\"><th>optimizer.lr</th><td></td><td>0.1</td></tr>",
        ];
        assert_each_says([&html], &parts);
        let losses = charts[0]["lines"].as_array().unwrap();
        let lines: Vec<_> = losses
            .iter()
            .map(|line| (line["name"].as_str().unwrap(), &line["colour"], &line["dashed"]))
            .collect();
        assert_eq!(
            format!("{lines:?}"),
            "[(\"a: training loss\", Number(0), Bool(false)), \
             (\"a: validation loss\", Number(0), Bool(true)), \
             (\"b: training loss\", Number(1), Bool(false)), \
             (\"b: validation loss\", Number(1), Bool(true))]"
        );
    }

    #[test]
    fn a_page_asks_nothing_of_other_machines() {
        let page = page(&[("a".to_owned(), report(&["loss"]))]);
        for word in ["http://", "https://", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.contains("default-src 'none'"));
    }
}
