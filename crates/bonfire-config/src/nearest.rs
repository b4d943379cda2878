//! Finds the known name that is most like an unknown one.

pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let lower = name.to_lowercase();
    let near = known.map(|known| {
        let distance = strsim::damerau_levenshtein(&lower, &known.to_lowercase());
        (distance, known)
    });
    let (distance, known) = near.min_by(|(one, first), (other, second)| {
        let likeness = |known: &str| strsim::jaro_winkler(&lower, &known.to_lowercase());
        let by_likeness = likeness(second).total_cmp(&likeness(first));
        one.cmp(other).then(by_likeness)
    })?;
    (2 * distance <= name.chars().count().max(2)).then(|| known.to_owned())
}
