//! Keys of different distributions, generated when they are needed.
//!
//! | name | what it is |
//! |---|---|
//! | `uniform` | random 64-bit numbers |
//! | `sequential` | rising numbers, in order |
//! | `lognormal` | exp(2 z) × 10⁹ for a normally distributed z, as in the papers on learned indexes |
//! | `longlat` | 180 × ⌊longitude⌋ + latitude of places near some hundred towns, as the NStore paper takes it from a map |
//! | `strings` | paths of files of this machine, up to some hundred thousand |
//!
//! Numbers have eight bytes, big-endian. All keys are different; all sets but `sequential` are shuffled.

use std::collections::HashSet;
use std::path::Path;

use crate::target::{Error, Result};
use crate::workload::permutation::{Permutation, mix64};
use crate::workload::random::Random;

/// A set of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dataset {
    /// Random numbers.
    Uniform,
    /// Numbers in ascending order.
    Sequential,
    /// Many small numbers, few large ones.
    Lognormal,
    /// Compounds of longitude and latitude.
    Longlat,
    /// Paths of files.
    Strings,
}

/// All sets.
pub const ALL: [Dataset; 5] = [Dataset::Uniform, Dataset::Sequential, Dataset::Lognormal, Dataset::Longlat, Dataset::Strings];

/// Number of towns around which the places lie.
const TOWNS: usize = 300;

impl Dataset {
    /// The name of the set in tables.
    pub fn name(self) -> &'static str {
        match self {
            Dataset::Uniform => "uniform",
            Dataset::Sequential => "sequential",
            Dataset::Lognormal => "lognormal",
            Dataset::Longlat => "longlat",
            Dataset::Strings => "strings",
        }
    }

    /// `count` different keys; fewer strings if the machine has fewer files.
    pub fn keys(self, count: u64) -> Result<Vec<Vec<u8>>> {
        let numbers = |draw: &mut dyn FnMut(&mut Random) -> u64| shuffled(distinct(count, draw).into_iter().map(bytes).collect());
        Ok(match self {
            Dataset::Uniform => (0..count).map(|i| bytes(mix64(i))).collect(),
            Dataset::Sequential => (0..count).map(bytes).collect(),
            Dataset::Lognormal => numbers(&mut |random| ((2.0 * normal(random)).exp() * 1e9) as u64),
            Dataset::Longlat => numbers(&mut longlat()),
            Dataset::Strings => shuffled(paths(count)?),
        })
    }
}

fn bytes(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Different numbers, in ascending order.
fn distinct(count: u64, draw: &mut dyn FnMut(&mut Random) -> u64) -> Vec<u64> {
    let (mut random, mut seen) = (Random::new(5), HashSet::with_capacity(count as usize));
    while (seen.len() as u64) < count {
        seen.insert(draw(&mut random));
    }
    let mut numbers: Vec<u64> = seen.into_iter().collect();
    numbers.sort_unstable();
    numbers
}

fn shuffled(keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let order = Permutation::new(keys.len().max(1) as u64, 11);
    (0..keys.len()).map(|i| keys[order.at(i as u64) as usize].clone()).collect()
}

/// A normally distributed number, by Box and Muller.
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.unit()).cos()
}

fn longlat() -> impl FnMut(&mut Random) -> u64 {
    let mut towns = Random::new(3);
    let towns: Vec<(f64, f64)> = (0..TOWNS).map(|_| (towns.unit() * 360.0, 30.0 + towns.unit() * 120.0)).collect();
    move |random| {
        let (longitude, latitude) = towns[random.below(TOWNS as u64) as usize];
        let longitude = (longitude + normal(random)).rem_euclid(360.0);
        let latitude = (latitude + normal(random)).clamp(0.0, 180.0);
        // Fixed point: the compound is below 180 × 360.
        ((180.0 * longitude.floor() + latitude) * (1u64 << 40) as f64) as u64
    }
}

/// Paths of files, sorted.
fn paths(count: u64) -> Result<Vec<Vec<u8>>> {
    let mut waiting: Vec<std::path::PathBuf> =
        ["/usr", "/etc", "/lib", "/opt", "/var/lib"].iter().map(|path| Path::new(path).to_owned()).collect();
    let mut found = HashSet::new();
    while let Some(directory) = waiting.pop() {
        // Directories that this user may not read are left out.
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            if found.len() as u64 >= count {
                break;
            }
            found.insert(entry.path().into_os_string().into_encoded_bytes());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(entry.path());
            }
        }
    }
    if found.len() < 100 {
        return Err(Error::Config("this machine has fewer than a hundred files in its usual directories: no real strings".into()));
    }
    let mut paths: Vec<Vec<u8>> = found.into_iter().collect();
    paths.sort_unstable();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_different_and_as_many_as_asked_for() {
        for dataset in ALL {
            let keys = dataset.keys(5_000).unwrap();
            assert!(keys.len() == 5_000 || dataset == Dataset::Strings, "{}", dataset.name());
            assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len(), "{}", dataset.name());
            assert_eq!(keys.is_sorted(), dataset == Dataset::Sequential, "{}", dataset.name());
        }
    }

    /// The shapes must differ, or the experiment on them shows nothing: the half of the keys around the median spans a
    /// small part of the range.
    #[test]
    fn distributions_are_what_their_names_say() {
        let middle_half = |dataset: Dataset| {
            let mut keys: Vec<u64> =
                dataset.keys(20_000).unwrap().iter().map(|key| u64::from_be_bytes(key[..].try_into().unwrap())).collect();
            keys.sort_unstable();
            (keys[15_000] - keys[5_000]) as f64 / (keys[19_999] - keys[0]) as f64
        };
        assert!((0.45..0.55).contains(&middle_half(Dataset::Uniform)));
        assert!(middle_half(Dataset::Lognormal) < 0.05);
        let mut longitudes: Vec<u64> = Dataset::Longlat
            .keys(20_000)
            .unwrap()
            .iter()
            .map(|key| u64::from_be_bytes(key[..].try_into().unwrap()) / (180 << 40))
            .collect();
        longitudes.sort_unstable();
        longitudes.dedup();
        assert!((200..=361).contains(&longitudes.len()), "whole degrees of longitude: {}", longitudes.len());
    }
}
