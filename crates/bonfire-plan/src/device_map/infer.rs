//! Fills one place after the other with the parts of a model.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::balance::balanced;
use super::{Budgets, DeviceMap, MapError, ModuleTree, Place, Strategy};
use crate::Bytes;

/// How a device map is found.
///
/// ```
/// # mod bonfire { pub mod plan { pub use bonfire_plan::*; } pub mod weights { pub mod device_map { pub use bonfire_plan::device_map::*; } } }
/// use bonfire::plan::Bytes;
/// use bonfire::weights::device_map::{Budgets, Inference, ModuleTree, Part, PartKind, Place};
///
/// let weight = |layer: u64| Part {
///     path: format!("layers.{layer}.weight"),
///     kind: PartKind::Parameter { bytes: Bytes::new(100), identity: layer },
/// };
/// let tree = ModuleTree::new((0..3).map(weight));
/// // Device 0 keeps room for a layer that is brought there.
/// let budgets = Budgets::new([("0", "200"), ("cpu", "1KB")])?;
/// let map = Inference::new(budgets).infer(&tree)?.map;
/// assert_eq!(map.place("layers.0"), Some(Place::Device(0)));
/// assert_eq!(map.place("layers.1.weight"), Some(Place::Cpu));
/// # Ok::<(), bonfire_plan::device_map::MapError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Inference {
    budgets: Budgets,
    strategy: Strategy,
    no_split: Vec<String>,
    falls_back: bool,
}

/// A device map, and what became of the budgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inferred {
    /// Where everything lies: a path for each part that lies in one place.
    pub map: DeviceMap,
    /// Places that got nothing although they have memory.
    pub unused: Vec<Unused>,
}

/// A place that got nothing, because the part whose turn it was did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unused {
    /// The place that got nothing.
    pub place: Place,
    /// How much it would have needed.
    pub needed: Bytes,
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, needed } = self;
        write!(f, "nothing fits {place}: give it {needed}, ")?;
        f.write_str("or split more classes")
    }
}

impl Inference {
    /// By [`Strategy::Balanced`], where any module may be split.
    pub fn new(budgets: Budgets) -> Self {
        Self { budgets, strategy: Strategy::default(), no_split: Vec::new(), falls_back: false }
    }

    /// The same with another strategy for sharing devices.
    #[must_use]
    pub fn with_strategy(self, strategy: Strategy) -> Self {
        Self { strategy, ..self }
    }

    /// Keeps modules of these classes whole, such as blocks with a residual connection.
    #[must_use]
    pub fn with_no_split(self, classes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let no_split = classes.into_iter().map(Into::into).collect();
        Self { no_split, ..self }
    }

    /// Where the part whose turn it is does not fit an empty place, gives that place the first later part that does.
    #[must_use]
    pub fn with_fallback_allocation(self) -> Self {
        Self { falls_back: true, ..self }
    }

    /// Finds the map of a model.
    ///
    /// # Errors
    /// [`MapError::UnknownClasses`].
    pub fn infer(&self, tree: &ModuleTree) -> Result<Inferred, MapError> {
        let (budgets, no_split) = (&self.budgets, &self.no_split);
        let known = tree.all().filter_map(|node| tree.class(node));
        let known: BTreeSet<&str> = known.filter(|class| !class.is_empty()).collect();
        let is_unknown = |class: &&String| !known.contains(class.as_str());
        let unknown = no_split.iter().filter(is_unknown);
        let classes: Vec<String> = unknown.cloned().collect();
        if !classes.is_empty() {
            let known = known.into_iter().map(str::to_owned).collect();
            return Err(MapError::UnknownClasses { classes, known });
        }
        let budgets = match self.strategy {
            Strategy::Balanced => balanced(tree, budgets, no_split, false),
            Strategy::BalancedLow0 => balanced(tree, budgets, no_split, true),
            Strategy::Sequential => budgets.clone(),
        };
        Ok(self.placed(tree, &budgets).into_inferred(tree))
    }

    /// Keeps room for offloaded layers only where there are any.
    fn placed<'a>(&'a self, tree: &'a ModuleTree, budgets: &Budgets) -> Search<'a> {
        let place = |reserving: &[Place]| {
            let mut search = Search::new(self, tree, budgets, reserving);
            search.run();
            search
        };
        // Where offloaded parts are brought: from host memory to the first device, from the file to host memory.
        let first = budgets.places.keys().next().copied();
        let device = first.filter(|place| matches!(place, Place::Device(_)));
        let main: Vec<Place> = device.into_iter().chain([Place::Cpu]).collect();
        let needed = |search: &Search<'_>| match search.assigned.values().max() {
            Some(Place::Disk) => main.len(),
            Some(Place::Cpu) => main.len() - 1,
            _ => 0,
        };
        let reserved = place(&main);
        let mut fewer = (0..needed(&reserved)).map(|kept| (kept, place(&main[..kept])));
        let enough = fewer.find(|(kept, search)| needed(search) <= *kept);
        enough.map_or(reserved, |(_, search)| search)
    }
}

/// The largest layer among those that have no place yet: innermost modules, and those that stay whole.
#[derive(Default)]
struct Layer {
    bytes: i64,
    nodes: Vec<usize>,
}

struct Search<'a> {
    tree: &'a ModuleTree,
    config: &'a Inference,
    /// With their memory, where it has an end.
    places: Vec<(Place, Option<i64>)>,
    reserving: Vec<Place>,
    current: usize,
    used: i64,
    queue: VecDeque<usize>,
    layer: Layer,
    /// What a fallback has put in front.
    fallback: Option<usize>,
    assigned: BTreeMap<usize, Place>,
    unused: Vec<Unused>,
}

impl<'a> Search<'a> {
    fn new(
        config: &'a Inference,
        tree: &'a ModuleTree,
        budgets: &Budgets,
        reserving: &[Place],
    ) -> Self {
        let limit = |bytes: &Bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX);
        let places = budgets.places.iter();
        let limited = places.filter(|(place, _)| **place != Place::Disk);
        let limited = limited.map(|(place, bytes)| (*place, Some(limit(bytes))));
        let mut search = Self {
            tree,
            config,
            places: limited.chain([(Place::Disk, None)]).collect(),
            reserving: reserving.to_vec(),
            current: 0,
            used: 0,
            queue: tree.children(0).iter().copied().collect(),
            layer: Layer::default(),
            fallback: None,
            assigned: BTreeMap::new(),
            unused: Vec::new(),
        };
        search.layer = search.largest_layer(search.queue.iter().copied());
        search
    }

    fn run(&mut self) {
        while let Some(item) = self.queue.pop_front() {
            let within = self.tree.within(item);
            self.layer.nodes.retain(|node| !within.contains(node));
            if self.layer.nodes.is_empty() {
                self.find_layer();
            }
            if !self.turn(item) {
                self.queue.push_front(item);
                self.current += 1;
                self.used = 0;
            }
        }
    }

    /// Gives a part a place, or takes parts apart; `false` if the current place is full.
    fn turn(&mut self, item: usize) -> bool {
        let (place, limit) = self.places[self.current];
        let (owners, _) = self.tied(item, &self.queue);
        let bytes = self.tree.bytes_of(item);
        let owned = owners.iter().map(|&owner| self.tree.bytes_of(owner));
        let together = bytes + owned.sum::<i64>();
        let reserved = if self.reserving.contains(&place) { self.layer.bytes } else { 0 };
        let free = limit.map(|limit| limit - reserved - self.used);
        let Some(free) = free.filter(|free| together > *free) else {
            self.used += together;
            self.queue.retain(|node| !owners.contains(node));
            let parts = owners.into_iter().chain([item]);
            self.assigned.extend(parts.map(|part| (part, place)));
            return true;
        };
        if bytes <= free
            && let Some(owner) = owners.into_iter().find(|&owner| self.is_divisible(owner))
        {
            let index = self.queue.iter().position(|&node| node == owner);
            self.divide_at(index.expect("owners are in the queue"));
            self.queue.push_front(item);
            self.find_layer();
            return true;
        }
        if bytes >= free && self.is_divisible(item) {
            self.queue.push_front(item);
            self.divide_at(0);
            self.find_layer();
            return true;
        }
        if self.used > 0 {
            return false;
        }
        let total = free + reserved;
        if self.config.falls_back
            && self.fallback != Some(item)
            && let Some(found) = self.first_that_fits(total - self.layer.bytes.max(together))
        {
            self.queue.push_front(item);
            self.queue.push_front(found);
            self.fallback = Some(found);
            return true;
        }
        let needed = Bytes::new((together + reserved).unsigned_abs());
        self.unused.push(Unused { place, needed });
        false
    }

    /// The parts of a queue that share parameters with a part, or with each other so that they have to come along; and
    /// whether all such are in the queue.
    fn tied(&self, item: usize, queue: &VecDeque<usize>) -> (Vec<usize>, bool) {
        let mut together = vec![item];
        let mut is_complete = true;
        let mut next = 0;
        while let Some(&part) = together.get(next) {
            let inside = self.tree.within(part);
            let is_shared = |group: &&Vec<usize>| group.iter().any(|node| inside.contains(node));
            for node in self.tree.ties().iter().filter(is_shared).flatten() {
                let has = |part: &usize| self.tree.within(*part).contains(node);
                if together.iter().any(has) {
                    continue;
                }
                match queue.iter().copied().find(has) {
                    Some(owner) => together.push(owner),
                    None => is_complete = false,
                }
            }
            next += 1;
        }
        together.remove(0);
        (together, is_complete)
    }

    fn is_divisible(&self, node: usize) -> bool {
        let class = self.tree.class(node);
        let may = class.is_some_and(|class| !self.config.no_split.iter().any(|one| one == class));
        may && self.tree.modules(node).next().is_some()
    }

    fn divide_at(&mut self, index: usize) {
        let rest = self.queue.split_off(index);
        let parts = self.tree.children(rest[0]).iter().copied();
        self.queue.extend(parts.chain(rest.into_iter().skip(1)));
    }

    /// Takes the first part of the queue, or of one of its parts, that a place has room for.
    fn first_that_fits(&mut self, room: i64) -> Option<usize> {
        let mut rest = self.queue.clone();
        let found = loop {
            let part = rest.pop_front()?;
            let (owners, is_complete) = self.tied(part, &rest);
            let parts = owners.into_iter().chain([part]);
            let bytes: i64 = parts.map(|part| self.tree.bytes_of(part)).sum();
            if bytes <= room && is_complete {
                break part;
            }
            if self.is_divisible(part) {
                let inner = self.tree.children(part).iter().rev();
                inner.for_each(|&inner| rest.push_front(inner));
            }
        };
        loop {
            let has = |part: &usize| self.tree.within(*part).contains(&found);
            let index = self.queue.iter().position(has)?;
            if self.queue[index] == found {
                return self.queue.remove(index);
            }
            self.divide_at(index);
        }
    }

    fn find_layer(&mut self) {
        let queue = self.queue.iter().copied();
        let modules = queue.filter(|&node| self.tree.class(node).is_some());
        self.layer = self.largest_layer(modules);
    }

    fn largest_layer(&self, nodes: impl Iterator<Item = usize>) -> Layer {
        let mut largest = Layer::default();
        let mut pending: Vec<usize> = nodes.collect();
        pending.reverse();
        while let Some(node) = pending.pop() {
            if self.is_divisible(node) {
                pending.extend(self.tree.modules(node).rev());
                continue;
            }
            let bytes = self.tree.bytes_of(node);
            if bytes > largest.bytes {
                largest.bytes = bytes;
                largest.nodes.clear();
            }
            if bytes == largest.bytes {
                largest.nodes.push(node);
            }
        }
        largest
    }

    /// One path for each module all of whose parts lie in one place.
    fn into_inferred(self, tree: &ModuleTree) -> Inferred {
        let mut places = BTreeMap::new();
        let mut node = 0;
        while node < tree.all().end {
            let within = tree.within(node);
            let mut inside = self.assigned.range(within.clone());
            let Some((&first, &place)) = inside.next() else {
                node = within.end;
                continue;
            };
            let has_more = inside.clone().next().is_some();
            if first == node || has_more && inside.all(|(_, other)| *other == place) {
                places.insert(tree.path(node).to_owned(), place);
                node = within.end;
            } else {
                node += 1;
            }
        }
        Inferred { map: DeviceMap { places }, unused: self.unused }
    }
}
