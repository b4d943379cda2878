//! Curves over the steps as an SVG image.
//!
//! Written as text, element by element: a picture this simple needs no drawing library, and its
//! letters are left to whoever shows it.

use std::fmt::{self, Write};
use std::ops::RangeInclusive;

use super::Point;

/// Pixels of the image.
const SIZE: (f64, f64) = (960.0, 540.0);

/// Pixels around the plot for the title and the labels: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (84.0, 56.0, 28.0, 64.0);

/// Labels on an axis, about.
const LABELS: f64 = 8.0;

/// Points of a line up to which each is marked: the rarer they are, the more each tells.
const MARKED_POINTS_MAX: usize = 30;

/// Of the lines, and of the parts of a bar.
pub(super) const COLOURS: [&str; 6] = [
    "#5692d6", "#de541e", "#6a9a3b", "#8a63b0", "#c79a1e", "#7c7c7c",
];

/// Curves over the steps of a training.
#[derive(Debug, Clone)]
pub(super) struct Chart<'a> {
    /// Above the picture.
    pub(super) title: &'a str,
    /// What the lines are, and their unit.
    pub(super) label: &'a str,
    /// Names and points.
    pub(super) lines: Vec<(&'a str, &'a [Point])>,
}

/// A straight scale from values to pixels, with round labels.
struct Axis {
    low: f64,
    high: f64,
    interval: f64,
    start_px: f64,
    end_px: f64,
}

impl Chart<'_> {
    /// The picture as an element of its own.
    pub(super) fn svg(&self) -> String {
        let mut svg = String::new();
        self.draw(&mut svg)
            .expect("writing to a String cannot fail");
        svg
    }

    fn draw(&self, svg: &mut String) -> fmt::Result {
        let all = || {
            let points = self.lines.iter().flat_map(|(_, points)| points.iter());
            points.filter(|point| point.value.is_finite())
        };
        let (left, top, right, bottom) = MARGIN;
        let (width, height) = SIZE;
        let steps = Axis::new(
            range(all().map(|point| point.step as f64)),
            left,
            width - right,
        );
        let values = Axis::new(range(all().map(|point| point.value)), height - bottom, top);

        writeln!(
            svg,
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="14" fill="#333">
<rect width="{width}" height="{height}" fill="white"/>
<text x="{left}" y="34" font-size="18">{}</text>"##,
            escape(self.title)
        )?;
        draw_grid(svg, &steps, &values, self.label)?;
        for ((_, points), colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            draw_line(svg, points, colour, &steps, &values)?;
        }
        for (place, ((name, _), colour)) in
            self.lines.iter().zip(COLOURS.iter().cycle()).enumerate()
        {
            let (x, y) = (width - right - 170.0, top + 18.0 + 24.0 * place as f64);
            let (end, text) = (x + 28.0, x + 38.0);
            writeln!(
                svg,
                r#"<line x1="{x}" y1="{y}" x2="{end}" y2="{y}" stroke="{colour}" stroke-width="3"/>
<text x="{text}" y="{y}" dy="5">{}</text>"#,
                escape(name)
            )?;
        }
        writeln!(svg, "</svg>")
    }
}

/// Grid lines, their labels and what the axes mean.
fn draw_grid(svg: &mut String, steps: &Axis, values: &Axis, label: &str) -> fmt::Result {
    let (left, right) = (steps.start_px, steps.end_px);
    let (bottom, top) = (values.start_px, values.end_px);
    for value in values.labels() {
        let (y, x, mark) = (values.px(value), left - 10.0, values.label(value));
        writeln!(
            svg,
            r##"<line x1="{left}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#e4e4e4"/>
<text x="{x}" y="{y:.1}" text-anchor="end" dy="5">{mark}</text>"##
        )?;
    }
    for step in steps.labels() {
        let (x, mark, y, label) = (
            steps.px(step),
            bottom + 5.0,
            bottom + 22.0,
            steps.label(step),
        );
        writeln!(
            svg,
            r##"<line x1="{x:.1}" y1="{bottom}" x2="{x:.1}" y2="{mark}" stroke="#888"/>
<text x="{x:.1}" y="{y}" text-anchor="middle">{label}</text>"##
        )?;
    }
    let (middle, below) = ((left + right) / 2.0, bottom + 48.0);
    let (beside, half) = (26.0, (top + bottom) / 2.0);
    writeln!(
        svg,
        r##"<line x1="{left}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="#888"/>
<text x="{middle}" y="{below}" text-anchor="middle">step</text>
<text x="{beside}" y="{half}" text-anchor="middle" transform="rotate(-90 {beside} {half})">{}</text>"##,
        escape(label)
    )
}

/// One line through the finite points.
fn draw_line(
    svg: &mut String,
    points: &[Point],
    colour: &str,
    steps: &Axis,
    values: &Axis,
) -> fmt::Result {
    write!(
        svg,
        r#"<polyline fill="none" stroke="{colour}" stroke-width="2" points=""#
    )?;
    for point in points.iter().filter(|point| point.value.is_finite()) {
        write!(
            svg,
            "{:.1},{:.1} ",
            steps.px(point.step as f64),
            values.px(point.value)
        )?;
    }
    writeln!(svg, r#""/>"#)?;
    if points.len() <= MARKED_POINTS_MAX {
        for point in points.iter().filter(|point| point.value.is_finite()) {
            let (x, y) = (steps.px(point.step as f64), values.px(point.value));
            writeln!(
                svg,
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#
            )?;
        }
    }
    Ok(())
}

impl Axis {
    /// The least range of whole label intervals around `values`, drawn between two pixels.
    fn new(values: RangeInclusive<f64>, start_px: f64, end_px: f64) -> Self {
        let (low, high) = values.into_inner();
        let interval = round_interval((high - low) / LABELS);
        let low = (low / interval).floor() * interval;
        let high = ((high / interval).ceil() * interval).max(low + interval);
        Self {
            low,
            high,
            interval,
            start_px,
            end_px,
        }
    }

    fn px(&self, value: f64) -> f64 {
        let place = (value - self.low) / (self.high - self.low);
        self.start_px + place * (self.end_px - self.start_px)
    }

    fn labels(&self) -> impl Iterator<Item = f64> {
        let count = ((self.high - self.low) / self.interval).round() as usize;
        (0..=count).map(|label| self.low + label as f64 * self.interval)
    }

    /// As many decimals as tell two neighbouring labels apart.
    fn label(&self, value: f64) -> String {
        let decimals = (-self.interval.log10().floor()).max(0.0) as usize;
        format!("{value:.decimals$}")
    }
}

/// 1, 2 or 5 times a power of ten, and not below `width`.
fn round_interval(width: f64) -> f64 {
    if width <= 0.0 || !width.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(width.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|digit| digit * power >= width);
    digit.unwrap_or(10.0) * power
}

/// From the lowest to the highest value; from 0 to 0 if there is none.
fn range(values: impl Iterator<Item = f64>) -> RangeInclusive<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if low > high { 0.0..=0.0 } else { low..=high }
}

/// Text for an element.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::html::tests::is_balanced;
    use super::*;

    fn line(values: &[f64]) -> Vec<Point> {
        let point = |(place, &value)| Point {
            step: place * 10,
            value,
        };
        values.iter().enumerate().map(point).collect()
    }

    fn check(training: &[f64], validation: &[f64]) {
        let (training, validation) = (line(training), line(validation));
        let chart = Chart {
            title: "a < b & c",
            label: "loss (nats per character)",
            lines: vec![("loss", &training), ("validation_loss", &validation)],
        };
        let svg = chart.svg();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(is_balanced(&svg), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.contains("a &lt; b &amp; c"));
        for text in [
            "step",
            "loss (nats per character)",
            "loss",
            "validation_loss",
        ] {
            assert!(
                svg.contains(&format!(">{text}</text>")),
                "{text} is missing"
            );
        }
    }

    #[test]
    fn two_lines_make_a_well_formed_image() {
        check(&[4.2, 3.0, 2.5, 2.2], &[4.2, 2.4]);
        check(&[2.5; 100], &[1.0]);
    }

    #[test]
    fn short_flat_and_broken_lines_are_drawn_too() {
        check(&[], &[]);
        check(&[2.0], &[2.0]);
        check(&[2.0, 2.0], &[]);
        check(&[4.0, f64::NAN, f64::INFINITY], &[4.0]);
    }

    #[test]
    fn labels_are_round_and_enclose_the_values() {
        let labels = |low, high| {
            let axis = Axis::new(low..=high, 0.0, 100.0);
            axis.labels()
                .map(|value| axis.label(value))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            labels(1.83, 4.2),
            ["1.5", "2.0", "2.5", "3.0", "3.5", "4.0", "4.5"]
        );
        assert_eq!(labels(0.0, 2000.0), ["0", "500", "1000", "1500", "2000"]);
        assert_eq!(labels(2.0, 2.0), ["2", "3"]);
    }

    #[test]
    fn higher_losses_are_drawn_higher() {
        let axis = Axis::new(1.0..=3.0, 500.0, 100.0);
        assert!(axis.px(3.0) < axis.px(1.0));
    }
}
