//! The page "The command bonfire" of the book: below a mark it is what clap says of every command; and the row of the
//! page on configuration that lists the optimizers.
//!
//! `BONFIRE_WRITE=1 cargo test -p bonfire-cli --bin bonfire completions` writes both again. The commands of other builds
//! stay as they are.

use std::fs;

use bonfire_config::OptimizerKind;
use clap::{Arg, ArgAction, Command, CommandFactory, Parser};

use crate::Cli;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../book/src/commands.md");

const CONFIGURATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../book/src/configuration.md");

/// Nothing below it is written by hand.
const MARK: &str =
    "<!-- What follows is written by a test: crates/bonfire-cli/src/completions/tests.rs -->";

/// With this variable the page is written instead of compared.
const WRITE: &str = "BONFIRE_WRITE";

/// The sections of the page below the mark, each from its heading on.
fn sections(page: &str) -> (String, Vec<String>) {
    let (head, written) = page.split_once(MARK).expect("the page has the mark");
    let parts = written.split("\n## ").skip(1);
    let parts = parts.map(|part| format!("## {}\n", part.trim_end())).collect();
    (head.to_owned(), parts)
}

fn heading(section: &str) -> &str {
    section.lines().next().unwrap_or_default()
}

/// What clap says of a command and the commands below it.
fn describe(command: &mut Command, found: &mut Vec<String>) {
    let name = command.get_bin_name().unwrap_or_default().to_owned();
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let usage: Vec<&str> = usage.lines().map(str::trim).collect();
    let mut text = format!("## {name}\n\n{about}\n\n```text\n{}\n```\n", usage.join("\n"));
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version");
    let rows: Vec<String> = command.get_arguments().filter(shown).map(row).collect();
    if !rows.is_empty() {
        text += "\n| argument | what it is |\n|---|---|\n";
        text += &rows.concat();
    }
    if command.get_name() != "bonfire" {
        found.push(text);
    }
    for below in command.get_subcommands_mut() {
        if below.get_name() != "help" {
            describe(below, found);
        }
    }
}

/// An argument, its other names, and what is so if it is not given.
fn row(arg: &Arg) -> String {
    let mut names = vec![arg.to_string()];
    names.extend(
        arg.get_short().filter(|_| arg.get_long().is_some()).map(|short| format!("-{short}")),
    );
    let aliases = arg.get_visible_aliases().unwrap_or_default();
    names.extend(aliases.iter().map(|alias| format!("--{alias}")));
    let help = arg.get_long_help().or(arg.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let mut text = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let values = arg.get_possible_values();
    if !values.is_empty() && !arg.is_hide_possible_values_set() {
        let one = |value: &clap::builder::PossibleValue| match value.get_help() {
            Some(help) => format!("`{}` ({help})", value.get_name()),
            None => format!("`{}`", value.get_name()),
        };
        let values: Vec<String> =
            values.iter().filter(|value| !value.is_hide_set()).map(one).collect();
        text += &format!(". One of {}", values.join(", "));
    }
    if matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) {
        let defaults: Vec<_> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        if !defaults.is_empty() {
            text += &format!(". Default: `{}`", defaults.join(","));
        }
    }
    if let Some(variable) = arg.get_env() {
        text += &format!(". Variable: `{}`", variable.to_string_lossy());
    }
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let cell = |text: String| text.replace('|', "\\|");
    format!("| {} | {} |\n", cell(names.join(", ")), cell(text))
}

#[test]
fn the_page_is_what_clap_says() {
    let mut command = Cli::command();
    command.build();
    let mut said = Vec::new();
    describe(&mut command, &mut said);
    let page = fs::read_to_string(PAGE).expect("the page can be read");
    let (head, written) = sections(&page);
    for section in &said {
        let name = heading(section).trim_start_matches("## ");
        assert!(head.contains(&format!("`{name}")), "no row for `{name}` in the page's table");
    }
    // In the order of the program; what only other builds have stays where the page has it: at the end.
    let is_said = |section: &&String| said.iter().any(|one| heading(one) == heading(section));
    let others: Vec<String> = written.iter().filter(|one| !is_said(one)).cloned().collect();
    assert!(
        others.iter().all(|one| heading(one) == "## bonfire selftest"),
        "no build has {:?}",
        others.iter().map(|one| heading(one)).collect::<Vec<_>>()
    );
    let all = [said, others].concat();
    if std::env::var_os(WRITE).is_some() {
        let page = format!("{head}{MARK}\n\n{}", all.join("\n"));
        fs::write(PAGE, page).expect("the page can be written");
        return;
    }
    for (written, said) in written.iter().zip(&all) {
        assert_eq!(written, said, "write the page again with {WRITE}=1");
    }
    assert_eq!(written.len(), all.len(), "write the page again with {WRITE}=1");
}

#[test]
fn the_page_on_configuration_lists_every_optimizer() {
    let names: Vec<String> = OptimizerKind::ALL.iter().map(|kind| format!("`{kind}`")).collect();
    let (key, default) = ("| `optimizer.kind` |", OptimizerKind::default());
    let row = format!("{key} `{default}` | {} |", names.join(", "));
    let page = fs::read_to_string(CONFIGURATION).expect("the page can be read");
    let found = page.lines().find(|line| line.starts_with(key)).expect("the page has the row");
    if std::env::var_os(WRITE).is_some() {
        fs::write(CONFIGURATION, page.replace(found, &row)).expect("the page can be written");
    } else {
        assert_eq!(found, row, "write the page again with {WRITE}=1");
    }
}

/// What the pages show the reader to type.
#[test]
fn commands_on_the_pages_are_understood() {
    let mut count = 0;
    for line in bonfire_testkit::command_lines() {
        // Under another launcher, too: `srun bonfire run ...`.
        let found = line.words.iter().position(|word| word == "bonfire");
        // Others take it for the name of a folder or of a package.
        let is_ours = !["cargo", "cd", "git"].contains(&line.words[0].as_str());
        let Some(place) = found.filter(|_| is_ours) else {
            continue;
        };
        let words = &line.words[place..];
        if words[1] == "selftest" && cfg!(not(feature = "cuda")) {
            continue;
        }
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{}: {}: {error}", line.page, words.join(" "));
        }
        count += 1;
    }
    assert!(count > 10, "the pages have {count} commands");
    bonfire_testkit::assert_understood("bonfire-cli", |words| Cli::try_parse_from(words));
}
