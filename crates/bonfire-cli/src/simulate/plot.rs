//! Algorithms against size, as an SVG image: time over bytes, both in logarithms.
//!
//! Written as text, element by element: a picture this simple needs no drawing library, and its
//! letters are left to whoever shows it.

use std::fmt::{self, Write};

use crate::quantity::show_seconds;
use bonfire_plan::Bytes;

/// Pixels of the image.
const SIZE: (f64, f64) = (960.0, 560.0);

/// Pixels around the plot for the title, the labels and the legend: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (84.0, 56.0, 190.0, 64.0);

/// Apart from each other also for those who do not see all colours (Okabe and Ito, 2008).
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];

/// Labels on the axis of sizes, at most.
const SIZE_LABELS_MAX: u32 = 12;

/// The times of one algorithm: pairs of bytes and seconds, by ascending bytes.
pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) points: Vec<(u64, f64)>,
}

/// A logarithmic scale from values to pixels.
struct Axis {
    low: f64,
    high: f64,
    start_px: f64,
    end_px: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64> + Clone, pixels: (f64, f64)) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(0.0, f64::max);
        Self {
            low: low.log2(),
            // One value alone lies in the middle of an octave.
            high: high.log2().max(low.log2() + 1.0),
            start_px: pixels.0,
            end_px: pixels.1,
        }
    }

    fn px(&self, value: f64) -> f64 {
        let share = (value.log2() - self.low) / (self.high - self.low);
        self.start_px + share * (self.end_px - self.start_px)
    }
}

/// Draws all curves that have a point; at least one must.
pub(super) fn svg(title: &str, curves: &[Curve]) -> String {
    let mut svg = String::new();
    draw(&mut svg, title, curves).expect("writing to a String cannot fail");
    svg
}

fn draw(svg: &mut String, title: &str, curves: &[Curve]) -> fmt::Result {
    let points = || curves.iter().flat_map(|curve| curve.points.iter());
    let (left, top, right, bottom) = MARGIN;
    let (width, height) = SIZE;
    let sizes = Axis::new(points().map(|point| point.0 as f64), (left, width - right));
    let times = Axis::new(points().map(|point| point.1), (height - bottom, top));
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">"
    )?;
    writeln!(
        svg,
        "<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>"
    )?;
    let title = escape(title);
    writeln!(
        svg,
        "<text x=\"{left}\" y=\"32\" font-size=\"16\">{title}</text>"
    )?;
    draw_sizes(svg, &sizes, &times)?;
    draw_times(svg, &sizes, &times)?;
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        draw_curve(svg, curve, colour, (&sizes, &times))?;
        let y = top + 22.0 * index as f64 + 8.0;
        let (x, text_x) = (width - right + 16.0, width - right + 48.0);
        writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" \
             stroke-width=\"2.5\"/><text x=\"{text_x}\" y=\"{}\">{}</text>",
            x + 24.0,
            y + 4.5,
            escape(curve.name)
        )?;
    }
    writeln!(svg, "</svg>")
}

/// Lines at powers of two of bytes, with labels below.
fn draw_sizes(svg: &mut String, sizes: &Axis, times: &Axis) -> fmt::Result {
    let (first, last) = (sizes.low.ceil() as u32, sizes.high.floor() as u32);
    let step = ((last.saturating_sub(first)) / SIZE_LABELS_MAX + 1).next_multiple_of(2);
    let (bottom, top) = (times.start_px, times.end_px);
    for log2 in (first..=last).filter(|log2| log2.is_multiple_of(step)) {
        let x = sizes.px(f64::from(log2).exp2());
        let label = Bytes::new(1 << log2);
        writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{bottom}\" x2=\"{x:.1}\" y2=\"{top}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            bottom + 20.0
        )?;
    }
    let middle = (sizes.start_px + sizes.end_px) / 2.0;
    let y = bottom + 46.0;
    writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\">size</text>"
    )
}

/// Lines at powers of ten of time, with labels to the left.
fn draw_times(svg: &mut String, sizes: &Axis, times: &Axis) -> fmt::Result {
    let decades = |log2: f64| log2 * std::f64::consts::LOG10_2;
    let (first, last) = (decades(times.low).ceil(), decades(times.high).floor());
    let (left, right) = (sizes.start_px, sizes.end_px);
    for decade in first as i32..=last as i32 {
        let time_s = 10.0_f64.powi(decade);
        let y = times.px(time_s);
        let label = show_seconds(time_s);
        writeln!(
            svg,
            "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            left - 8.0,
            y + 4.5
        )?;
    }
    let middle = (times.start_px + times.end_px) / 2.0;
    writeln!(
        svg,
        "<text transform=\"translate(20 {middle}) rotate(-90)\" text-anchor=\"middle\">time</text>"
    )
}

fn draw_curve(svg: &mut String, curve: &Curve, colour: &str, axes: (&Axis, &Axis)) -> fmt::Result {
    let (sizes, times) = axes;
    write!(
        svg,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\" points=\""
    )?;
    for &(bytes, time_s) in &curve.points {
        write!(
            svg,
            "{:.1},{:.1} ",
            sizes.px(bytes as f64),
            times.px(time_s)
        )?;
    }
    writeln!(svg, "\"/>")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_has_a_line_and_a_name() {
        let curves = [
            Curve {
                name: "ring",
                points: vec![(1024, 1e-5), (1 << 20, 1e-4), (1 << 30, 1e-2)],
            },
            Curve {
                name: "two_shot",
                points: vec![(1024, 2e-6)],
            },
        ];
        let svg = svg("a < b & c", &curves);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<polyline").count(), 2);
        for part in [
            "a &lt; b &amp; c",
            ">ring<",
            ">two_shot<",
            "1 MiB",
            "100 us",
        ] {
            assert!(svg.contains(part), "{part} is missing");
        }
        // The fastest point lies at the bottom, the smallest size at the left.
        assert!(svg.contains("points=\"84.0,496.0 \""), "{svg}");
    }

    #[test]
    fn one_point_is_enough() {
        let curve = Curve {
            name: "ring",
            points: vec![(1, 1e-9)],
        };
        let svg = svg("", &[curve]);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
