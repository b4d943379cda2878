//! The papers' rules, written down once more.

use super::*;

/// What the papers say, in f64 but for the inner steps.
pub(super) struct Oracle {
    config: DilocoConfig,
    common: Vec<f64>,
    momentum: Vec<f64>,
    nets: Vec<Net>,
    fragments: Vec<OracleFragment>,
}

#[derive(Default)]
struct OracleFragment {
    elements: Vec<usize>,
    /// When the exchange under way ends, and the mean of the differences.
    exchange: Option<(u64, Vec<f64>)>,
    /// Whether workers have gone their own ways since.
    differs: bool,
}

impl Oracle {
    pub(super) fn trained(workers: u32, config: DilocoConfig, steps: u64) -> Vec<f32> {
        let net = Net::new(0);
        let lengths = floats::lengths(&net);
        let first = |index: usize| lengths[..index].iter().sum::<usize>();
        let elements = |index: usize| first(index)..first(index) + lengths[index];
        let fragments = assign(&lengths, config.fragments.get()).into_iter();
        let fragments = fragments.map(|parameters| OracleFragment {
            elements: parameters.into_iter().flat_map(elements).collect(),
            ..OracleFragment::default()
        });
        let common: Vec<f64> = net.all().into_iter().map(f64::from).collect();
        let mut oracle = Self {
            config,
            momentum: vec![0.0; common.len()],
            common,
            nets: vec![net; workers as usize],
            fragments: fragments.collect(),
        };
        for step in 1..=steps {
            oracle.step(step);
        }
        oracle.finish(steps);
        oracle.common.into_iter().map(|value| value as f32).collect()
    }

    fn step(&mut self, step: u64) {
        let nets = (0..).zip(std::mem::take(&mut self.nets));
        let nets = nets.map(|(worker, net)| stepped(net, (worker, step - 1)));
        self.nets = nets.collect();
        for index in 0..self.fragments.len() {
            let fragment = &mut self.fragments[index];
            fragment.differs = true;
            if matches!(fragment.exchange, Some((ends, _)) if ends == step) {
                self.end(index, self.config.mixing);
            }
            if self.config.begins(index, step) {
                self.begin(index, step);
                if self.config.delay == 0 {
                    self.end(index, self.config.mixing);
                }
            }
        }
    }

    fn begin(&mut self, index: usize, step: u64) {
        let all: Vec<Vec<f32>> = self.nets.iter().map(Net::all).collect();
        let fragment = &mut self.fragments[index];
        let difference = |element: &usize| {
            let common = self.common[*element];
            let each = all.iter().map(|own| common - f64::from(own[*element]));
            each.sum::<f64>() / all.len() as f64
        };
        let mean = fragment.elements.iter().map(difference).collect();
        fragment.exchange = Some((step + self.config.delay, mean));
        fragment.differs = false;
    }

    fn end(&mut self, index: usize, mixing: f64) {
        let Self { config, common, momentum, .. } = self;
        let fragment = &mut self.fragments[index];
        let (_, mean) = fragment.exchange.take().unwrap();
        for (element, gradient) in fragment.elements.iter().copied().zip(mean) {
            let momentum = &mut momentum[element];
            *momentum = config.outer_momentum * *momentum + gradient;
            common[element] -= config.outer_rate * (gradient + config.outer_momentum * *momentum);
        }
        fragment.differs &= mixing > 0.0;
        for net in &mut self.nets {
            let mut all: Vec<f64> = net.all().into_iter().map(f64::from).collect();
            for element in fragment.elements.iter().copied() {
                all[element] = mixing * all[element] + (1.0 - mixing) * common[element];
            }
            *net = with(net.clone(), &all);
        }
    }

    fn finish(&mut self, step: u64) {
        for index in 0..self.fragments.len() {
            if self.fragments[index].exchange.is_some() {
                self.end(index, self.config.mixing);
            }
            if self.fragments[index].differs {
                // The mean of the parameters, without the outer optimizer.
                self.begin(index, step);
                let (_, mean) = self.fragments[index].exchange.take().unwrap();
                let elements = self.fragments[index].elements.iter().zip(mean);
                elements.for_each(|(element, gradient)| self.common[*element] -= gradient);
            }
        }
    }
}

/// A model with these parameters.
pub(super) fn with(net: Net, all: &[f64]) -> Net {
    let mut rest = all;
    let mut parts = BTreeMap::new();
    for (index, len) in floats::lengths(&net).into_iter().enumerate() {
        let (part, after) = rest.split_at(len);
        parts.insert(index, part.iter().map(|value| *value as f32).collect());
        rest = after;
    }
    floats::write(net, parts, 0.0)
}
