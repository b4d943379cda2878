//! The report as one page that needs nothing but itself.

use std::fmt::{self, Write};
use std::time::Duration;

use super::report::{Curve, Report};
use super::{Point, TimeSplit, chart};

/// Of the parts of a bar.
const COLOURS: [&str; 6] = [
    "#5692d6", "#de541e", "#6a9a3b", "#8a63b0", "#c79a1e", "#7c7c7c",
];

/// How the page looks.
const STYLE: &str = "body{font-family:sans-serif;color:#333;max-width:980px;margin:24px auto}\
    table{border-collapse:collapse}td,th{padding:3px 14px 3px 0;text-align:left;vertical-align:top}\
    td.n{text-align:right;font-variant-numeric:tabular-nums}p.straggler{color:#b3400f}\
    td.bar{width:420px;white-space:nowrap;font-size:0}td.bar i{display:inline-block;height:18px}";

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let mut page = String::new();
    write_page(&mut page, report).expect("writing to a String cannot fail");
    page
}

fn write_page(page: &mut String, report: &Report) -> fmt::Result {
    let title = escape(&report.title);
    writeln!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<table>"
    )?;
    for (name, value) in report.rows() {
        let (name, value) = (escape(&name), escape(&value));
        writeln!(page, "<tr><th>{name}</th><td>{value}</td></tr>")?;
    }
    writeln!(page, "</table>")?;
    for group in charts(&report.curves) {
        let names: Vec<&str> = group.iter().map(|curve| curve.tag.as_str()).collect();
        let lines: Vec<(&str, &[Point])> = group
            .iter()
            .map(|curve| (curve.tag.as_str(), &curve.points[..]))
            .collect();
        page.push_str(&chart::svg(&names.join(", "), names[0], &lines));
    }
    write_time(page, report)?;
    writeln!(page, "</body>\n</html>")
}

/// Where each rank's time went, in a picture and in numbers.
fn write_time(page: &mut String, report: &Report) -> fmt::Result {
    writeln!(page, "<h2>Where the time went</h2>")?;
    if let Some(line) = report.straggler_line() {
        writeln!(page, "<p class=\"straggler\">{}</p>", escape(&line))?;
    }
    let sum = |split: &TimeSplit| split.parts().iter().map(|(_, part)| *part).sum();
    let longest = report
        .ranks
        .iter()
        .map(sum)
        .fold(report.total, Duration::max);
    let percent = 100.0 / longest.as_secs_f64().max(1e-9);
    write!(page, "<table>\n<tr><th>rank</th>")?;
    for ((name, _), colour) in TimeSplit::default().parts().into_iter().zip(COLOURS) {
        let name = escape(name);
        write!(
            page,
            "<th style=\"border-bottom:4px solid {colour}\">{name} (s)</th>"
        )?;
    }
    writeln!(page, "<th></th></tr>")?;
    for (rank, split) in report.ranks.iter().enumerate() {
        write!(page, "<tr><td>{rank}</td>")?;
        for (_, part) in split.parts() {
            write!(page, "<td class=\"n\">{:.2}</td>", part.as_secs_f64())?;
        }
        // All bars to one scale.
        write!(page, "<td class=\"bar\">")?;
        for ((_, part), colour) in split.parts().into_iter().zip(COLOURS) {
            let width = part.as_secs_f64() * percent;
            write!(
                page,
                "<i style=\"width:{width:.2}%;background:{colour}\"></i>"
            )?;
        }
        writeln!(page, "</td></tr>")?;
    }
    writeln!(page, "</table>")
}

/// Curves that share a picture: all losses do; of the others, each has its own.
pub(super) fn charts(curves: &[Curve]) -> Vec<Vec<&Curve>> {
    let (losses, others): (Vec<_>, Vec<_>) =
        curves.iter().partition(|curve| curve.tag.ends_with("loss"));
    let losses = Some(losses).filter(|losses| !losses.is_empty());
    let others = others.into_iter().map(|curve| vec![curve]);
    losses.into_iter().chain(others).collect()
}

/// Text for an element.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Whether every element that is opened is closed again, in order.
    pub(in super::super) fn is_balanced(text: &str) -> bool {
        let mut open = Vec::new();
        for tag in text
            .split('<')
            .skip(1)
            .map(|rest| rest.split('>').next().unwrap_or(""))
        {
            let name = tag
                .trim_start_matches('/')
                .split_whitespace()
                .next()
                .unwrap_or("");
            match (tag.starts_with('/'), tag.ends_with('/')) {
                _ if tag.starts_with('!') => {}
                (true, _) if open.pop() != Some(name) => return false,
                (false, false) => open.push(name),
                _ => {}
            }
        }
        open.is_empty()
    }

    #[test]
    fn losses_share_a_picture_and_nothing_else_does() {
        let curve = |tag: &str| Curve {
            tag: tag.to_owned(),
            points: Vec::new(),
        };
        let curves = ["accuracy", "loss", "learning_rate", "validation_loss"].map(curve);
        let tags: Vec<Vec<&str>> = charts(&curves)
            .iter()
            .map(|group| group.iter().map(|curve| curve.tag.as_str()).collect())
            .collect();
        let expected: [&[&str]; 3] = [
            &["loss", "validation_loss"],
            &["accuracy"],
            &["learning_rate"],
        ];
        assert_eq!(tags, expected);
        assert!(charts(&[]).is_empty());
    }
}
