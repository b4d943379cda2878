//! `bonfire completions`: what a shell needs to complete the command's words.

use std::io;

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

/// Print what a shell needs to complete this command.
///
/// The book says where each shell looks for it.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn run<C: CommandFactory>(args: &CompletionsArgs) {
    let mut command = C::command();
    let name = command.get_name().to_owned();
    generate(args.shell, &mut command, name, &mut io::stdout());
}

#[cfg(test)]
mod tests;
