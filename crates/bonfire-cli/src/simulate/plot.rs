//! Time against size or ranks, as an SVG image.

use std::error::Error;

use bonfire_plan::Bytes;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::quantity::show_seconds;

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

struct Plot<'a> {
    title: &'a str,
    against: Against,
    curves: &'a [Curve],
}

#[derive(Clone, Copy)]
pub(crate) enum Against {
    /// Bytes, in logarithms, as the times.
    Size,
    /// Ranks, from zero, as the times.
    Ranks,
}

/// The times of one algorithm or program: pairs of bytes or ranks and seconds, in ascending order.
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(u64, f64)>,
}

/// Draws curves side by side, of which at least one has a point.
pub(crate) fn svg(title: &str, against: Against, curves: &[Curve]) -> String {
    let mut svg = String::new();
    let plot = Plot { title, against, curves };
    let drawn = match against {
        Against::Size => plot.draw_against_size(&mut svg),
        Against::Ranks => plot.draw_against_ranks(&mut svg),
    };
    drawn.expect("drawing into a String cannot fail");
    svg
}

impl Plot<'_> {
    fn points(&self) -> impl Iterator<Item = &(u64, f64)> {
        self.curves.iter().flat_map(|curve| &curve.points)
    }

    fn slowest(&self) -> f64 {
        self.points().map(|point| point.1).fold(0.0, f64::max)
    }

    fn most(&self) -> u64 {
        self.points().map(|point| point.0).max().unwrap_or(1)
    }

    fn draw_against_size(&self, svg: &mut String) -> Result<(), Box<dyn Error>> {
        let least = self.points().map(|point| point.0).min().unwrap_or(1).max(1);
        let times = self.points().map(|point| point.1);
        let fastest = times.fold(f64::INFINITY, f64::min);
        // One value alone lies at the beginning of an octave.
        let sizes = least as f64..self.most().max(2 * least) as f64;
        let times = fastest..self.slowest().max(2.0 * fastest);
        self.draw(svg, sizes.log_scale().base(2.0), times.log_scale())
    }

    fn draw_against_ranks(&self, svg: &mut String) -> Result<(), Box<dyn Error>> {
        // Room for the mark of the last point, and of the slowest.
        let up_to = |most: f64| 0.0..1.05 * most;
        self.draw(svg, up_to(self.most() as f64), up_to(self.slowest()))
    }

    fn draw<X, Y>(&self, svg: &mut String, values: X, times: Y) -> Result<(), Box<dyn Error>>
    where
        X: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
        Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 16))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(values, times)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(self.against.labels_max(self.most()))
            .x_desc(self.against.name())
            .y_desc("time")
            .x_label_formatter(&|&value| self.against.show(value))
            .y_label_formatter(&|&time_s| match time_s {
                0.0 => "0".to_owned(),
                time_s => show_seconds(time_s),
            })
            .label_style(("sans-serif", 13))
            .draw()?;
        for (curve, colour) in self.curves.iter().zip(COLOURS.into_iter().cycle()) {
            let points = curve.points.iter();
            let points = points.map(|&(value, time_s)| (value.max(1) as f64, time_s));
            let marks = points.clone();
            chart.draw_series(marks.map(|point| Circle::new(point, 3, colour.filled())))?;
            let sample =
                move |(x, y)| PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(2));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(curve.name)
                .legend(sample);
        }
        let place = match self.against {
            Against::Size => SeriesLabelPosition::UpperLeft,
            Against::Ranks => SeriesLabelPosition::LowerLeft,
        };
        chart
            .configure_series_labels()
            .position(place)
            .background_style(WHITE.mix(0.8))
            .label_font(("sans-serif", 13))
            .draw()?;
        root.present()?;
        Ok(())
    }
}

impl Against {
    fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Ranks => "ranks",
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::Size => Bytes::new(value as u64).to_string(),
            Self::Ranks => value.to_string(),
        }
    }

    /// Labels of an axis up to `most`: of ranks, those of whole numbers at the most.
    fn labels_max(self, most: u64) -> usize {
        match self {
            Self::Size => 11,
            Self::Ranks => most.clamp(1, 16) as usize + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_has_a_line_and_a_name() {
        let curves = [
            Curve { name: "ring", points: vec![(1024, 1e-5), (1 << 20, 1e-4), (1 << 30, 1e-2)] },
            Curve { name: "two_shot", points: vec![(1024, 2e-6)] },
        ];
        let svg = svg("a < b & c", Against::Size, &curves);
        for part in ["a &lt; b &amp; c", "ring", "two_shot", "1 MiB", "100 us"] {
            assert!(svg.contains(&format!("\n{part}\n")), "{part} is missing: {svg}");
        }
        for colour in ["#0072B2", "#D55E00"] {
            assert!(svg.contains(colour), "a line in {colour} is missing: {svg}");
        }
    }

    #[test]
    fn one_point_is_enough() {
        let curve = Curve { name: "ring", points: vec![(1, 1e-9)] };
        let svg = svg("", Against::Size, &[curve]);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 1, "{svg}");
    }

    #[test]
    fn ranks_are_whole_numbers_and_times_begin_at_zero() {
        for most in [1, 2, 3, 8, 64] {
            let curve = Curve { name: "measured", points: vec![(1, 46.0), (most, 23.0)] };
            let svg = svg("", Against::Ranks, &[curve]);
            for part in ["ranks", "0", "40 s"] {
                assert!(svg.contains(&format!("\n{part}\n")), "{part} is missing: {svg}");
            }
            let is_number = |text: &&str| text.parse::<f64>().is_ok();
            let numbers: Vec<&str> = svg.lines().filter(is_number).collect();
            assert!(numbers.len() > 2, "{numbers:?}");
            let is_whole = |text: &&str| text.parse::<u64>().is_ok();
            assert!(numbers.iter().all(is_whole), "{most}: {numbers:?}");
        }
    }
}
