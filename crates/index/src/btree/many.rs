//! Many lookups at once: all lookups of a group take one step, then all take the next, so that their cache misses
//! overlap.

use super::BTree;
use super::inner::Inner;
use super::leaf::Leaf;
use super::protocol::Protocol;
use crate::common::node::{KEY_LINES, Node};
use crate::common::search;
use crate::common::slice::{LAYER, LONGER, slice_at};
use crate::common::version::Restart;
use crate::{Key, Ref, Resolver};

/// Number of lookups in flight. More than a core has line fill buffers would gain nothing.
pub(crate) const GROUP: usize = 16;

/// What a lookup does next. Each step ends with a prefetch of the memory that the next step reads.
#[derive(Clone, Copy)]
enum Step<'a> {
    /// Takes the node's version, coupled with the one above, and searches it.
    Search {
        above: Node<'a>,
        above_version: u64,
        node: Node<'a>,
    },
    /// Reads the value of a slot that was found.
    Value {
        leaf: Leaf<'a>,
        version: u64,
        position: usize,
        kind: u8,
    },
    /// Compares with the key in the log.
    Verify {
        candidate: Ref,
    },
    Done,
}

#[derive(Clone, Copy)]
struct Walk<'a> {
    step: Step<'a>,
    slice: u64,
    rank: u8,
    /// Whether no layer so far skips slices.
    exact: bool,
    /// Whether the next search begins a layer: then its skip is read.
    entering: bool,
    depth: usize,
}

impl<P: Protocol> BTree<P> {
    pub(super) fn lookup_many<R: Resolver>(&self, keys: &[Key<'_>], found: &mut [Ref], resolver: &R) {
        for (keys, found) in keys.chunks(GROUP).zip(found.chunks_mut(GROUP)) {
            match self.top() {
                Ok(root) => self.lookup_group(&[Some(root); GROUP], keys, found, resolver, &|key| self.lookup(key, resolver)),
                Err(Restart) => self.lookup_singly(keys, found, resolver),
            }
        }
    }

    /// Looks up those of at most [`GROUP`] keys that have a root of layer 0 to begin at. Keys whose search met a change
    /// are looked up by `singly`.
    #[inline(always)]
    pub(crate) fn lookup_group<'a, R: Resolver>(
        &'a self,
        roots: &[Option<(Node<'a>, u64)>; GROUP],
        keys: &[Key<'_>],
        found: &mut [Ref],
        resolver: &R,
        singly: &impl Fn(&[u8]) -> Ref,
    ) {
        let idle = Walk { step: Step::Done, slice: 0, rank: 0, exact: true, entering: false, depth: 0 };
        let mut walks = [idle; GROUP];
        for ((walk, key), root) in walks.iter_mut().zip(keys).zip(roots) {
            let Some((root, version)) = *root else { continue };
            (walk.slice, walk.rank) = slice_at(key.bytes, 0);
            walk.step = Step::Search { above: root, above_version: version, node: root };
        }
        let walks = &mut walks[..keys.len()];
        let mut active = walks.len();
        while active > 0 {
            active = 0;
            for (i, walk) in walks.iter_mut().enumerate() {
                if matches!(walk.step, Step::Done) {
                    continue;
                }
                match self.advance(walk, keys[i].bytes, resolver) {
                    Ok(Some(reference)) => {
                        found[i] = reference;
                        walk.step = Step::Done;
                    }
                    Ok(None) => active += 1,
                    Err(Restart) => {
                        found[i] = singly(keys[i].bytes);
                        walk.step = Step::Done;
                    }
                }
            }
        }
    }

    #[cold]
    fn lookup_singly<R: Resolver>(&self, keys: &[Key<'_>], found: &mut [Ref], resolver: &R) {
        for (key, found) in keys.iter().zip(found) {
            *found = self.lookup(key.bytes, resolver);
        }
    }

    /// Takes one step; returns the result if it was the last.
    #[inline(always)]
    fn advance<'a, R: Resolver>(&'a self, walk: &mut Walk<'a>, key: &[u8], resolver: &R) -> Result<Option<Ref>, Restart> {
        match walk.step {
            Step::Search { above, above_version, node } => self.search_node(walk, (above, above_version), node, key),
            Step::Value { leaf, version, position, kind } => {
                let value = leaf.value(leaf.0.meta(), position);
                leaf.0.version().check(version)?;
                if kind == LAYER {
                    // SAFETY: the version says that the slot is a live layer's (N2); the caller's pin keeps its root
                    // from being recycled.
                    let node = unsafe { Node::from_address(value) };
                    Node::prefetch(value, KEY_LINES);
                    walk.entering = true;
                    walk.step = Step::Search { above: leaf.0, above_version: version, node };
                } else if walk.exact && kind != LONGER {
                    return Ok(Some(Ref(value)));
                } else {
                    resolver.prefetch(Ref(value));
                    walk.step = Step::Verify { candidate: Ref(value) };
                }
                Ok(None)
            }
            Step::Verify { candidate } => Ok(Some(if resolver.matches(candidate, key) { candidate } else { Ref::NONE })),
            Step::Done => Ok(Some(Ref::NONE)),
        }
    }

    #[inline(always)]
    fn search_node<'a>(
        &'a self,
        walk: &mut Walk<'a>,
        (above, above_version): (Node<'a>, u64),
        node: Node<'a>,
        key: &[u8],
    ) -> Result<Option<Ref>, Restart> {
        let version = node.version().read()?;
        above.version().check(above_version)?;
        let meta = node.meta();
        if walk.entering {
            walk.entering = false;
            walk.exact &= meta.skip() == 0;
            walk.depth += 8 + 8 * meta.skip();
            (walk.slice, walk.rank) = slice_at(key, walk.depth);
        }
        if meta.level() > 0 {
            let inner = Inner(node);
            let address = inner.child_for(search::is_wide(), walk.slice);
            Node::prefetch(address, KEY_LINES);
            node.version().check(version)?;
            // SAFETY: the version says that the address is a live child's (N2); the caller's pin keeps it from being
            // recycled.
            let child = unsafe { Node::from_address(address) };
            walk.step = Step::Search { above: node, above_version: version, node: child };
            return Ok(None);
        }
        let leaf = Leaf(node);
        let (position, kind) = leaf.find(meta, walk.slice, walk.rank);
        let Some(kind) = kind else {
            node.version().check(version)?;
            return Ok(Some(Ref::NONE));
        };
        leaf.prefetch_value(meta, position);
        walk.step = Step::Value { leaf, version, position, kind };
        Ok(None)
    }
}
