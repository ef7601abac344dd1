//! White-box tests.

use super::LearnedIndex;
use crate::conformance::{ordered, point};

#[test]
fn conformance_ordered() {
    ordered::run_all(LearnedIndex::new);
}

#[test]
fn conformance_point() {
    point::run_all(LearnedIndex::new);
}

#[test]
#[ignore]
fn stats() {
    use super::gapped::Gapped;
    use crate::conformance::{FakeLog, Rng};
    let (index, log) = (LearnedIndex::new(), FakeLog::new(1));
    let mut rng = Rng::new(1);
    let n = std::env::var("N").map_or(1_000_000, |n| n.parse().unwrap());
    for _ in 0..n {
        ordered::put(&index, &log, &rng.word().to_be_bytes());
    }
    let mut hist = std::collections::BTreeMap::new();
    let (mut leaf, _) = index.descend(0).unwrap();
    let (mut leaves, mut slots) = (0, 0);
    loop {
        let shape = leaf.shape();
        leaves += 1;
        slots += shape.blocks() * 8;
        for b in shape.first()..shape.end() {
            let block = leaf.block(shape, b);
            for i in 0..block.count() {
                *hist.entry(leaf.predict(shape, block.slice(i)) as i64 - b as i64).or_insert(0usize) += 1;
            }
        }
        if leaf.next() == 0 {
            break;
        }
        leaf = Gapped(unsafe { crate::common::node::Node::from_address(leaf.next()) });
    }
    println!("{leaves} leaves, {slots} slots, {} density", n as f64 / slots as f64);
    for (d, c) in hist {
        if c * 1000 > n {
            println!("{d}: {:.3}", c as f64 / n as f64);
        }
    }
    let root = index.tree.top().unwrap().0;
    let root = Gapped(root);
    let shape = root.shape();
    let mut hist = std::collections::BTreeMap::new();
    for b in shape.first()..shape.end() {
        let block = root.block(shape, b);
        for i in 0..block.count() {
            *hist.entry(root.predict(shape, block.slice(i)) as i64 - b as i64).or_insert(0usize) += 1;
        }
    }
    println!("root level {} count {} {:?}", root.0.meta().level(), root.count(), hist);
}
