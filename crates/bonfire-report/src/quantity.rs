//! Title, unit and axis of a measured quantity.

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Quantity {
    /// In words, with a capital letter.
    pub(crate) title: String,
    /// The unit of a value times `scale`; empty for a number without one.
    pub(crate) unit: String,
    pub(crate) scale: f64,
    /// Starts the axis at zero, as that of a rate or a duration must: small changes would look large.
    pub(crate) from_zero: bool,
}

impl Quantity {
    /// Finds the quantity of a tag. `samples` is the unit of samples, in the plural.
    pub(crate) fn of(tag: &str, samples: &str) -> Self {
        let new = |title: &str, unit: &str, scale, from_zero| Self {
            title: capitalised(title),
            unit: unit.to_owned(),
            scale,
            from_zero,
        };
        let words = |tag: &str| tag.replace('_', " ");
        match tag {
            "loss" => return new("training loss", "", 1.0, false),
            "throughput" => return new(tag, &format!("{samples} per second"), 1.0, true),
            "exposed_communication_seconds" => {
                return new("exposed communication", "ms per step", 1e3, true);
            }
            _ => {}
        }
        let suffixes = [
            ("_seconds", "s", 1.0),
            ("_bytes", "MiB", 1.0 / f64::from(1 << 20)),
            ("_per_second", "per second", 1.0),
        ];
        for (suffix, unit, scale) in suffixes {
            if let Some(name) = tag.strip_suffix(suffix) {
                return new(&words(name), unit, scale, true);
            }
        }
        let is_rate = tag.contains("rate") || tag.contains("accuracy");
        new(&words(tag), "", 1.0, is_rate)
    }

    pub(crate) fn show(&self, value: f64) -> String {
        let value = value * self.scale;
        let number = match value.abs() {
            0.0 | 0.001..1e3 => format!("{value:.4}"),
            1e3.. => format!("{value:.0}"),
            _ => format!("{value:.2e}"),
        };
        match self.unit.as_str() {
            "" => number,
            unit => format!("{number} {unit}"),
        }
    }

    pub(crate) fn heading(&self) -> String {
        match self.unit.as_str() {
            "" => self.title.clone(),
            unit => format!("{} ({unit})", self.title),
        }
    }
}

/// The order of a curve among others: the most important come first.
pub(crate) fn place(tag: &str) -> usize {
    match tag {
        "loss" => 0,
        _ if tag.ends_with("loss") => 1,
        "throughput" => 2,
        "exposed_communication_seconds" => 3,
        "learning_rate" => 5,
        _ => 4,
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_title_and_a_unit_and_rates_begin_at_zero() {
        let headings = [
            ("loss", "Training loss", false),
            ("validation_loss", "Validation loss", false),
            ("throughput", "Throughput (tokens per second)", true),
            ("exposed_communication_seconds", "Exposed communication (ms per step)", true),
            ("learning_rate", "Learning rate", true),
            ("accuracy", "Accuracy", true),
            ("waiting_seconds", "Waiting (s)", true),
            ("device_bytes", "Device (MiB)", true),
        ];
        for (tag, heading, from_zero) in headings {
            let quantity = Quantity::of(tag, "tokens");
            assert_eq!(quantity.heading(), heading);
            assert_eq!(quantity.from_zero, from_zero, "{tag}");
        }
    }

    #[test]
    fn values_have_the_digits_that_tell_something() {
        let show = |tag, value| Quantity::of(tag, "tokens").show(value);
        assert_eq!(show("loss", 2.51239), "2.5124");
        assert_eq!(show("learning_rate", 3e-5), "3.00e-5");
        assert_eq!(show("throughput", 12_345.6), "12346 tokens per second");
        let exposed = show("exposed_communication_seconds", 0.000_31);
        assert_eq!(exposed, "0.3100 ms per step");
        assert_eq!(show("loss", f64::NAN), "NaN");
        assert_eq!(show("loss", 0.0), "0.0000");
    }
}
