//! Curves over the steps of a training as an SVG image.

use std::error::Error;
use std::ops::Range;

use plotters::prelude::*;

use super::Point;

/// Pixels of the image.
const SIZE: (u32, u32) = (960, 540);

/// Points of a line up to which each is marked: the rarer they are, the more each tells.
const MARKED_POINTS_MAX: usize = 30;

/// Draws lines, each with its name. `label` says what they are, with their unit.
pub(super) fn svg(title: &str, label: &str, lines: &[(&str, &[Point])]) -> String {
    let mut svg = String::new();
    draw(&mut svg, title, label, lines).expect("drawing into a String cannot fail");
    svg
}

fn draw(
    svg: &mut String,
    title: &str,
    label: &str,
    lines: &[(&str, &[Point])],
) -> Result<(), Box<dyn Error>> {
    let finite = |points: &[Point]| -> Vec<(f64, f64)> {
        let finite = points.iter().filter(|point| point.value.is_finite());
        finite
            .map(|point| (point.step as f64, point.value))
            .collect()
    };
    let lines: Vec<(&str, Vec<(f64, f64)>)> = lines
        .iter()
        .map(|(name, points)| (*name, finite(points)))
        .collect();
    let points = || lines.iter().flat_map(|(_, points)| points);
    let steps = range(points().map(|point| point.0));
    let values = range(points().map(|point| point.1));

    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(steps, values)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("step")
        .y_desc(label)
        .label_style(("sans-serif", 14))
        .draw()?;
    for (place, (name, points)) in lines.iter().enumerate() {
        let colour = Palette99::pick(place).mix(1.0);
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
        let line = line.point_size(u32::from(points.len() <= MARKED_POINTS_MAX) * 3);
        let sample = move |(x, y)| PathElement::new([(x, y), (x + 28, y)], colour.stroke_width(3));
        chart.draw_series(line)?.label(*name).legend(sample);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 14))
        .draw()?;
    root.present()?;
    Ok(())
}

/// From the lowest to the highest value, and never empty.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    match (low, high) {
        _ if low > high => 0.0..1.0,
        _ if low == high => low..low + 1.0,
        _ => low..high,
    }
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
        let lines: [(&str, &[Point]); 2] = [("loss", &training), ("validation_loss", &validation)];
        let svg = svg("a < b & c", "loss (nats per character)", &lines);
        assert!(is_balanced(&svg), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        for text in [
            "a &lt; b &amp; c",
            "step",
            "loss (nats per character)",
            "loss",
            "validation_loss",
        ] {
            assert!(
                svg.contains(&format!("\n{text}\n")),
                "{text} is missing: {svg}"
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
}
