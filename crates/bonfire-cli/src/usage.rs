//! Command-line errors in one line.

use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};

/// The exit code of a wrong command line, as of other Unix tools.
const USAGE_EXIT_CODE: u8 = 2;

/// Parses the command line of this process; prints help, version or one line of what is wrong.
pub(crate) fn parse<P: Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        if matches!(
            error.kind(),
            ErrorKind::DisplayHelp
                | ErrorKind::DisplayVersion
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        ) {
            // Whoever closed the output does not want the help.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE_EXIT_CODE));
        }
        eprintln!("{}", one_line(&error));
        ExitCode::from(USAGE_EXIT_CODE)
    })
}

/// The first paragraph of the error, which says what is wrong, without the summary of the usage.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let first: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let mut line = first.join(" ");
    if let Some(suggestion) = error.get(ContextKind::SuggestedArg) {
        line.push_str(&format!("; did you mean {suggestion}?"));
    }
    line.push_str("; try --help");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long)]
        count: u32,
    }

    fn refused(arguments: &[&str]) -> String {
        let arguments = std::iter::once(&"program").chain(arguments);
        one_line(&Args::try_parse_from(arguments).unwrap_err())
    }

    #[test]
    fn each_mistake_is_one_line() {
        let line = refused(&["--cuont", "3"]);
        assert!(
            line.starts_with("error: unexpected argument '--cuont' found"),
            "{line}"
        );
        assert!(line.contains("did you mean --count?"), "{line}");
        let line = refused(&["--count", "many"]);
        assert!(line.contains("'many' for '--count <COUNT>'"), "{line}");
        let line = refused(&[]);
        assert!(line.contains("--count <COUNT>"), "{line}");
        assert!(!line.contains('\n'), "{line}");
    }
}
