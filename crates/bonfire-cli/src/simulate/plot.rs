//! Algorithms against size, as an SVG image: time over bytes, both in logarithms.

use std::error::Error;

use bonfire_plan::Bytes;
use plotters::prelude::*;

use crate::quantity::show_seconds;

/// Pixels of the image.
const SIZE: (u32, u32) = (960, 560);

/// Apart from each other also for those who do not see all colours (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    BLACK,
    RGBColor(0xf0, 0xe4, 0x42),
];

/// The times of one algorithm: pairs of bytes and seconds, by ascending bytes.
pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) points: Vec<(u64, f64)>,
}

/// Draws all curves that have a point; at least one must.
pub(super) fn svg(title: &str, curves: &[Curve]) -> String {
    let mut svg = String::new();
    draw(&mut svg, title, curves).expect("drawing into a String cannot fail");
    svg
}

fn draw(svg: &mut String, title: &str, curves: &[Curve]) -> Result<(), Box<dyn Error>> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let sizes = points().map(|point| point.0);
    let (least, most) = (sizes.clone().min().unwrap_or(1), sizes.max().unwrap_or(1));
    let fastest = points().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let slowest = points().map(|point| point.1).fold(0.0, f64::max);
    // One value alone lies at the beginning of an octave.
    let sizes = least.max(1) as f64..most.max(2 * least.max(1)) as f64;
    let times = fastest..slowest.max(2.0 * fastest);

    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 16))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(sizes.log_scale().base(2.0), times.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("size")
        .y_desc("time")
        .x_label_formatter(&|&bytes| Bytes::new(bytes as u64).to_string())
        .y_label_formatter(&|&time_s| show_seconds(time_s))
        .label_style(("sans-serif", 13))
        .draw()?;
    for (curve, colour) in curves.iter().zip(COLOURS.into_iter().cycle()) {
        let points = curve.points.iter();
        let points = points.map(|&(bytes, time_s)| (bytes.max(1) as f64, time_s));
        let sample = move |(x, y)| PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(2));
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(curve.name)
            .legend(sample);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 13))
        .draw()?;
    root.present()?;
    Ok(())
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
        for part in ["a &lt; b &amp; c", "ring", "two_shot", "1 MiB", "100 us"] {
            assert!(
                svg.contains(&format!("\n{part}\n")),
                "{part} is missing: {svg}"
            );
        }
        for colour in ["#0072B2", "#D55E00"] {
            assert!(svg.contains(colour), "a line in {colour} is missing: {svg}");
        }
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
