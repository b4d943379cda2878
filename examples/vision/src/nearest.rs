//! Finds the known name that is most similar to an unknown one.

pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Jaro and Winkler's measure is 1 for the same and 0 for nothing in common; a letter too many, too
    // few or swapped stays above this even in short names.
    const SIMILAR: f64 = 0.8;
    known
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .filter(|(similarity, _)| *similarity > SIMILAR)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

pub(crate) fn did_you_mean(name: Option<&str>) -> String {
    name.map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_nonsense_none() {
        let known = ["TRAIN.BATCH_SIZE", "TEST.BATCH_SIZE", "OPTIM.BASE_LR"];
        let found = |name| nearest(name, known.into_iter());
        assert_eq!(found("TRAIN.BATCHSIZE"), Some("TRAIN.BATCH_SIZE"));
        assert_eq!(found("OPTIM.BASE_RL"), Some("OPTIM.BASE_LR"));
        assert_eq!(found("x"), None);
    }
}
