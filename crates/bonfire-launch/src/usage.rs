//! Command-line mistakes in one line, because several ranks may print them.

use std::ffi::OsString;
use std::io::{Write, stderr};

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};

/// The exit code of a wrong command line, as of other Unix tools.
const USAGE_EXIT_CODE: i32 = 2;

/// Parses the command line of this process as [`Parser::parse`] does, but says what is wrong with it in one line.
pub fn parse_args<P: Parser>() -> P {
    parse_args_from(std::env::args_os()).unwrap_or_else(|wrong| {
        // Nobody may be there to read it.
        let _ = writeln!(stderr(), "error: {wrong}");
        std::process::exit(USAGE_EXIT_CODE);
    })
}

/// As [`parse_args`], from a program's name and its arguments. Prints help or the version, and ends this
/// process, if that is asked for.
///
/// # Errors
/// What is wrong, in one line.
pub fn parse_args_from<P: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<P, String> {
    P::try_parse_from(arguments).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        _ => format!("{}; try --help", what_is_wrong(&error)),
    })
}

/// The first paragraph of clap's message, which says what is wrong, without the summary of flags.
fn what_is_wrong(error: &clap::Error) -> String {
    let text = error.to_string();
    let first: Vec<&str> =
        text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let mut line = first.join(" ");
    if let Some(suggestion) = error.get(ContextKind::SuggestedArg) {
        line.push_str(&format!("; did you mean {suggestion}?"));
    }
    match line.strip_prefix("error: ") {
        Some(rest) => rest.to_owned(),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long)]
        count: u32,
    }

    #[test]
    fn each_mistake_is_one_line() {
        let cases: [(&[&str], &str); 3] = [
            (&["", "--cuont", "3"], "unexpected argument '--cuont' found; did you mean --count?"),
            (&["", "--count", "many"], "invalid value 'many' for '--count <COUNT>'"),
            (&[""], "the following required arguments were not provided: --count <COUNT>"),
        ];
        for (arguments, expected) in cases {
            let line = what_is_wrong(&Args::try_parse_from(arguments).unwrap_err());
            assert!(line.starts_with(expected), "{line}");
            assert!(!line.contains('\n'), "{line}");
        }
    }
}
