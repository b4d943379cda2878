//! `bonfire completions`: what a shell needs to complete the command's words.

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

pub(crate) fn run<C: CommandFactory>(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut command = C::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    generate(args.shell, &mut command, name, &mut script);
    crate::print(&String::from_utf8(script)?)
}

#[cfg(test)]
mod tests;
