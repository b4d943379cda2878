//! The modules of a model, with the bytes of their parameters and buffers.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::Bytes;

/// A module, a parameter or a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it is in the model, as `encoder.layers.3.weight`.
    pub path: String,
    /// Whether it is a module, parameter or buffer.
    pub kind: PartKind,
}

/// What a part of a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// What has parts, or none.
    Module {
        /// The name of its type.
        class: String,
    },
    /// A tensor that is trained.
    Parameter {
        /// How many bytes it has.
        bytes: Bytes,
        /// Parameters with the same number share their values; they count once, under the first path.
        identity: u64,
    },
    /// A tensor that is not trained.
    Buffer {
        /// How many bytes it has.
        bytes: Bytes,
    },
}

/// The modules of a model: what a device map is made of.
///
/// Nodes are in the order of a visit: of each module its parameters, then its modules with all that is in them, then
/// its buffers. So what is below a node follows it.
#[derive(Clone, Debug)]
pub struct ModuleTree {
    nodes: Vec<Node>,
    ties: Vec<Vec<usize>>,
}

#[derive(Clone, Debug)]
struct Node {
    part: Part,
    bytes: u64,
    /// Whether a parameter or a buffer counts here.
    counts: bool,
    children: Vec<usize>,
    end: usize,
}

/// A part whose place in the order is not known yet.
struct Draft {
    part: Part,
    /// Parameters, modules and buffers, in this order.
    children: [Vec<usize>; 3],
}

impl ModuleTree {
    /// Of these parts, in the order in which the model defines them. A module that is only named in paths of others is
    /// there, too, without a class.
    pub fn new(parts: impl IntoIterator<Item = Part>) -> Self {
        let mut drafts = Drafts::default();
        drafts.index_of("");
        for part in parts {
            let index = drafts.index_of(&part.path);
            drafts.all[index].part = part;
        }
        drafts.into_tree()
    }

    /// How many bytes all parameters and buffers have.
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.nodes[0].bytes)
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| node.part.path.as_str())
    }

    pub(super) fn path(&self, node: usize) -> &str {
        &self.nodes[node].part.path
    }

    pub(super) fn all(&self) -> Range<usize> {
        0..self.nodes.len()
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = usize> {
        self.all().filter(|&node| self.class(node).is_none())
    }

    /// Parameters that share their values, by their sorted paths.
    pub(super) fn ties(&self) -> &[Vec<usize>] {
        &self.ties
    }

    pub(super) fn class(&self, node: usize) -> Option<&str> {
        match &self.nodes[node].part.kind {
            PartKind::Module { class } => Some(class),
            PartKind::Parameter { .. } | PartKind::Buffer { .. } => None,
        }
    }

    pub(super) fn bytes_of(&self, node: usize) -> i64 {
        i64::try_from(self.nodes[node].bytes).unwrap_or(i64::MAX)
    }

    /// Whether a parameter or a buffer at or below a node counts there.
    pub(super) fn has_tensors(&self, node: usize) -> bool {
        self.nodes[node].counts
    }

    /// The node and all that is below it.
    pub(super) fn within(&self, node: usize) -> Range<usize> {
        node..self.nodes[node].end
    }

    pub(super) fn children(&self, node: usize) -> &[usize] {
        &self.nodes[node].children
    }

    pub(super) fn modules(&self, node: usize) -> impl DoubleEndedIterator<Item = usize> {
        let children = self.children(node).iter().copied();
        children.filter(|&child| self.class(child).is_some())
    }
}

#[derive(Default)]
struct Drafts {
    all: Vec<Draft>,
    by_path: HashMap<String, usize>,
}

impl Drafts {
    /// The draft of a path, made with those above it if there is none.
    fn index_of(&mut self, path: &str) -> usize {
        let mut missing = Vec::new();
        let mut above = Some(path);
        while let Some(path) = above.filter(|path| !self.by_path.contains_key(*path)) {
            missing.push(path);
            above = match path.rsplit_once('.') {
                Some((parent, _)) => Some(parent),
                None => (!path.is_empty()).then_some(""),
            };
        }
        for path in missing.into_iter().rev() {
            let class = String::new();
            self.by_path.insert(path.to_owned(), self.all.len());
            self.all.push(Draft {
                part: Part { path: path.to_owned(), kind: PartKind::Module { class } },
                children: Default::default(),
            });
        }
        self.by_path[path]
    }

    fn into_tree(mut self) -> ModuleTree {
        for index in 1..self.all.len() {
            let part = &self.all[index].part;
            let parent = part.path.rsplit_once('.').map_or("", |(parent, _)| parent);
            let parent = self.by_path[parent];
            let list = match part.kind {
                PartKind::Parameter { .. } => 0,
                PartKind::Module { .. } => 1,
                PartKind::Buffer { .. } => 2,
            };
            self.all[parent].children[list].push(index);
        }
        let mut nodes: Vec<Node> = Vec::with_capacity(self.all.len());
        let mut tied: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        // Drafts to come, each with the node above it.
        let mut stack = vec![(0, None)];
        let mut parents = Vec::new();
        while let Some((index, parent)) = stack.pop() {
            let node = nodes.len();
            let Draft { part, children } = &self.all[index];
            let bytes = match part.kind {
                PartKind::Module { .. } => None,
                PartKind::Buffer { bytes } => Some(bytes),
                PartKind::Parameter { bytes, identity } => {
                    let group = tied.entry(identity).or_default();
                    group.push(node);
                    (group.len() == 1).then_some(bytes)
                }
            };
            let children = children.iter().flatten().rev();
            stack.extend(children.map(|&child| (child, Some(node))));
            parents.push(parent);
            nodes.push(Node {
                part: part.clone(),
                bytes: bytes.map_or(0, Bytes::get),
                counts: bytes.is_some(),
                children: Vec::new(),
                end: node + 1,
            });
        }
        for node in (1..nodes.len()).rev() {
            let Node { bytes, counts, end, .. } = nodes[node];
            let parent = &mut nodes[parents[node].expect("all but the first have one")];
            parent.bytes += bytes;
            parent.counts |= counts;
            parent.end = parent.end.max(end);
            parent.children.push(node);
        }
        for node in &mut nodes {
            node.children.reverse();
        }
        let mut ties: Vec<Vec<usize>> = tied.into_values().filter(|one| one.len() > 1).collect();
        for group in &mut ties {
            group.sort_by_key(|&node| nodes[node].part.path.clone());
        }
        ties.sort_by_key(|group| nodes[group[0]].part.path.clone());
        ModuleTree { nodes, ties }
    }
}
