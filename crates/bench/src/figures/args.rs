//! The command line of `figures`; the same for every table.
//!
//! Thread safety: plain values.

use std::path::PathBuf;

use clap::Args;

use crate::target::{Error, Result};

/// Options of `figures`.
#[derive(Clone, Debug, Args)]
pub struct FiguresArgs {
    /// Which table to measure
    #[arg(value_parser = ["engine", "nstore", "compaction", "server"], default_value = "engine")]
    pub table: String,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
    /// Smaller counts and one round: shows that everything runs, not how fast
    #[arg(long)]
    pub quick: bool,
    /// Only rows whose short name contains this; may be repeated
    #[arg(long, value_name = "ROW")]
    pub only: Vec<String>,
    /// Builds the peers' program first, for `engine` and `nstore`
    #[arg(long)]
    pub peers: bool,
    /// The peers' program [default: where --peers builds it]
    #[arg(long, value_name = "PROGRAM")]
    pub peers_program: Option<PathBuf>,
    /// The program `hither`, for `server` [default: beside this one]
    #[arg(long, value_name = "PROGRAM")]
    pub server_program: Option<PathBuf>,
    /// Rounds; figures are medians [default: 3, with --quick 1]
    #[arg(long)]
    pub rounds: Option<u32>,
    /// Keys [default: 5,000,000, with --quick 200,000]
    #[arg(long)]
    pub keys: Option<u64>,
    /// Also measures one thread, larger values and 50 M keys in `engine`, for the report
    #[arg(long)]
    pub full: bool,
    /// Measures the ordered rows of `nstore` with the learned index instead of the B+-tree
    #[arg(long)]
    pub learned: bool,
    /// Keys of the restart in `nstore` [default: 50,000,000, with --quick 500,000]
    #[arg(long)]
    pub restart_keys: Option<u64>,
    /// Minutes of endless updates in `nstore` [default: 10; with --quick 3 of two seconds each]
    #[arg(long)]
    pub minutes: Option<u32>,
    /// A directory on a disk, for the rows on files of `engine` and `server` [default: the temporary directory]
    #[arg(long)]
    pub disk: Option<PathBuf>,
    /// Writes every record of a run of `engine` or `nstore` to this file, for `report`
    #[arg(long, value_name = "FILE")]
    pub records: Option<PathBuf>,
}

impl FiguresArgs {
    /// Refuses options that the table does not use. Ignoring them would lose records, or measure something else than
    /// was asked for.
    ///
    /// # Errors
    /// The first such option, with the tables that use it.
    pub fn check(&self) -> Result<()> {
        let wrong = |(_, given, tables): &&(&str, bool, &[&str])| *given && !tables.contains(&self.table.as_str());
        match self.special().iter().find(wrong) {
            None => Ok(()),
            Some((option, _, tables)) => {
                Err(Error::Config(format!("{option} is for figures {}, and has no meaning for {}", tables.join(" and "), self.table)))
            }
        }
    }

    /// The options that not all tables use: whether each is given, and the tables that use it.
    fn special(&self) -> [(&'static str, bool, &'static [&'static str]); 9] {
        [
            ("--peers", self.peers, &["engine", "nstore"]),
            ("--peers-program", self.peers_program.is_some(), &["engine", "nstore"]),
            ("--server-program", self.server_program.is_some(), &["server"]),
            ("--full", self.full, &["engine"]),
            ("--learned", self.learned, &["nstore"]),
            ("--restart-keys", self.restart_keys.is_some(), &["nstore"]),
            ("--minutes", self.minutes.is_some(), &["nstore"]),
            ("--disk", self.disk.is_some(), &["engine", "server"]),
            ("--records", self.records.is_some(), &["engine", "nstore"]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: FiguresArgs,
    }

    fn check(words: &str) -> Result<()> {
        let words = ["figures"].into_iter().chain(words.split_whitespace());
        Program::try_parse_from(words).expect("valid arguments").args.check()
    }

    /// Regression: a table ignored the options of others.
    #[test]
    fn options_of_other_tables_are_refused() {
        let good = [
            "--full --peers --disk d --records f --keys 7 --rounds 2 --only load --json --quick --peers-program p",
            "nstore --learned --restart-keys 7 --minutes 2 --records f --peers --peers-program p",
            "compaction --keys 7 --rounds 2 --only base --json --quick",
            "server --disk d --server-program p --keys 7",
        ];
        good.into_iter().for_each(|words| assert!(check(words).is_ok(), "{words}"));
        for (words, option) in [
            ("compaction --records f", "--records"),
            ("server --records f", "--records"),
            ("engine --learned", "--learned"),
            ("nstore --full", "--full"),
            ("engine --minutes 3", "--minutes"),
            ("server --restart-keys 7", "--restart-keys"),
            ("compaction --disk d", "--disk"),
            ("nstore --disk d", "--disk"),
            ("server --peers", "--peers"),
            ("compaction --peers-program p", "--peers-program"),
            ("engine --server-program p", "--server-program"),
        ] {
            let message = check(words).expect_err(words).to_string();
            assert!(message.starts_with(&format!("{option} is for ")), "{words}: {message}");
        }
    }
}
