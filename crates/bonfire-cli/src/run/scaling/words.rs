//! What stands in a program's arguments for the number of ranks and for the folder of a run.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context, ensure};

/// The end of a number that is divided.
const DIVIDED: &str = "/ranks}";

/// Returns an argument for a run on `ranks` ranks. One that is not UTF-8 is returned as it is.
pub(super) fn filled(
    argument: &OsStr,
    ranks: NonZeroU32,
    folder: &Path,
) -> anyhow::Result<OsString> {
    let Some(mut rest) = argument.to_str() else {
        return Ok(argument.to_owned());
    };
    let mut text = String::new();
    while let Some((before, after)) = rest.split_once(DIVIDED) {
        let divided = before.rsplit_once('{');
        let divided = divided.and_then(|(start, number)| Some((start, number.parse().ok()?)));
        text += &match divided {
            Some((start, number)) => format!("{start}{}", share(number, ranks)?),
            None => format!("{before}{DIVIDED}"),
        };
        rest = after;
    }
    text += rest;
    let text = text.replace("{ranks}", &ranks.to_string());
    if !text.contains("{folder}") {
        return Ok(text.into());
    }
    let folder = folder.to_str();
    let folder = folder.context("{folder} needs an --out that is UTF-8")?;
    Ok(text.replace("{folder}", folder).into())
}

fn share(number: u64, ranks: NonZeroU32) -> anyhow::Result<u64> {
    let ranks = u64::from(ranks.get());
    ensure!(
        number.is_multiple_of(ranks),
        "{{{number}/ranks}} is not a whole number on {ranks} ranks; give --ranks numbers that divide {number}"
    );
    Ok(number / ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_four(argument: &str) -> anyhow::Result<String> {
        let ranks = NonZeroU32::new(4).unwrap();
        let text = filled(argument.as_ref(), ranks, Path::new("out/ranks-4"))?;
        Ok(text.into_string().unwrap())
    }

    #[test]
    fn words_in_braces_are_replaced_and_all_else_stays() {
        for (argument, expected) in [
            ("{ranks}", "4"),
            ("--batch={256/ranks},{8/ranks}", "--batch=64,2"),
            ("{folder}/a/{folder}-{ranks}", "out/ranks-4/a/out/ranks-4-4"),
            (r#"{"a":{"b":{256/ranks}},"c":[{ranks}]}"#, r#"{"a":{"b":64},"c":[4]}"#),
            ("{x/ranks} 8/ranks} {rank} {}", "{x/ranks} 8/ranks} {rank} {}"),
            ("", ""),
        ] {
            assert_eq!(on_four(argument).unwrap(), expected);
        }
    }

    #[test]
    fn what_the_ranks_do_not_divide_is_refused() {
        let error = on_four("{6/ranks}").unwrap_err().to_string();
        assert!(error.starts_with("{6/ranks} is not a whole number on 4 ranks"), "{error}");
    }
}
