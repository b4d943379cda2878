//! Sizes, times and bandwidths, as people write them.

use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;
use std::time::Duration;

use bonfire_plan::{Bytes, UnknownBytes};

/// Powers of ten behind which a number of bytes or bits per second is counted.
const PREFIXES: [(&str, f64); 5] = [("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3), ("", 1.0)];

/// Reads a whole number that is at least 1.
pub(crate) fn positive<N: FromStr<Err = ParseIntError>>(text: &str) -> Result<N, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::Zero => "must be at least 1".to_owned(),
        _ => error.to_string(),
    })
}

/// Reads `4096`, `64K`, `16MiB` or `1.5G`, at least one byte.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let bytes: Bytes = text.parse().map_err(|error: UnknownBytes| error.to_string())?;
    match usize::try_from(bytes.get()) {
        Ok(0) => Err("must be at least one byte".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(format!("{text} is too large")),
    }
}

/// Sizes from the smallest to the largest, each that many times larger than the one before.
pub(crate) fn sizes(min: usize, max: usize, step_factor: u32) -> anyhow::Result<Vec<usize>> {
    anyhow::ensure!(min <= max, "--min-bytes {min} is larger than --max-bytes {max}");
    let next = |bytes: &usize| bytes.checked_mul(step_factor as usize);
    Ok(std::iter::successors(Some(min), next).take_while(|bytes| *bytes <= max).collect())
}

/// Reads `3.4us`, `500ns`, `1ms` or `2s`; in seconds.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let units = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    units
        .iter()
        .find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))
        .and_then(|(digits, scale)| Some(number(digits)? * scale))
        .ok_or_else(|| format!("`{text}` is not a time such as 3.4us, 500ns or 1ms"))
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let seconds = seconds(text)?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` is too long a time"))
}

/// Reads `370GB/s`, `12.5G` (bytes) or `100Gb/s` (bits); in bytes per second.
pub(crate) fn bandwidth(text: &str) -> Result<f64, String> {
    let (amount, bytes) = match text.strip_suffix("/s") {
        None => (text.strip_suffix('B').unwrap_or(text), 1.0),
        Some(amount) => match (amount.strip_suffix('B'), amount.strip_suffix('b')) {
            (Some(amount), _) => (amount, 1.0),
            (None, Some(amount)) => (amount, 0.125),
            (None, None) => (amount, 1.0),
        },
    };
    PREFIXES
        .iter()
        .find_map(|(prefix, scale)| Some((strip_prefix_letter(amount, prefix)?, scale)))
        .and_then(|(digits, scale)| Some(number(digits)? * scale * bytes))
        .filter(|&rate| rate > 0.0)
        .ok_or_else(|| format!("`{text}` is not a bandwidth such as 370GB/s or 100Gb/s"))
}

/// `digits` of `digits` and one of the letters, in either case.
fn strip_prefix_letter<'a>(text: &'a str, letter: &str) -> Option<&'a str> {
    text.strip_suffix(letter).or_else(|| text.strip_suffix(&letter.to_lowercase()))
}

/// Reads a number that is finite and not negative.
fn number(digits: &str) -> Option<f64> {
    let number: f64 = digits.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

pub(crate) fn show_seconds(seconds: f64) -> String {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us")];
    let unit = units.into_iter().find(|(scale, _)| seconds >= *scale);
    let (scale, unit) = unit.unwrap_or((1e-9, "ns"));
    format!("{} {unit}", three_digits(seconds / scale))
}

pub(crate) fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// The inverse of a time per byte, in GB/s.
pub(crate) fn show_bandwidth(s_per_byte: f64) -> String {
    format!("{} GB/s", three_digits(1e-9 / s_per_byte))
}

fn three_digits(number: f64) -> String {
    let decimals = match number {
        number if number >= 99.95 => 0,
        number if number >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{number:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(size("8"), Ok(8));
        assert_eq!(size("64K"), Ok(64 << 10));
        assert_eq!(size("3m"), Ok(3 << 20));
        assert_eq!(size("1G"), Ok(1 << 30));
        for bad in ["", "K", "1X", "-1", "0", "99999999999999999999G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, expected) in [("3.4us", 3.4e-6), ("500ns", 5e-7), ("1ms", 1e-3), ("2s", 2.0)] {
            assert!((seconds(text).unwrap() - expected).abs() <= 1e-12 * expected, "{text}");
        }
        for bad in ["", "3", "us", "-1us", "infs", "1 minute"] {
            assert!(seconds(bad).unwrap_err().contains(bad), "{bad}");
            assert!(duration(bad).unwrap_err().contains(bad), "{bad}");
        }
        assert_eq!(duration("1.5ms"), Ok(Duration::from_micros(1500)));
        assert!(duration("1e30s").unwrap_err().contains("too long"));
    }

    #[test]
    fn bandwidths_are_bytes_or_bits() {
        let readable = [
            ("370GB/s", 370e9),
            ("12.5G", 12.5e9),
            ("12.5g/s", 12.5e9),
            ("100Gb/s", 12.5e9),
            ("1TB/s", 1e12),
            ("800kB/s", 8e5),
            ("1e9", 1e9),
        ];
        for (text, expected) in readable {
            assert!((bandwidth(text).unwrap() - expected).abs() <= 1e-12 * expected, "{text}");
        }
        for bad in ["", "fast", "0", "-1G", "10Gbit"] {
            assert!(bandwidth(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_shown_with_three_digits() {
        assert_eq!(show_seconds(3.4e-6), "3.4 us");
        assert_eq!(show_seconds(0.032_64), "32.6 ms");
        assert_eq!(show_seconds(123.4), "123 s");
        assert_eq!(show_seconds(2e-10), "0.2 ns");
        assert_eq!(show_seconds(0.0), "0 ns");
        assert_eq!(show_bandwidth(1.0 / 370e9), "370 GB/s");
        assert_eq!(show_bandwidth(1.0 / 3e9), "3 GB/s");
    }
}
