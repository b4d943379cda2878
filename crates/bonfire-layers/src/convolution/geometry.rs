//! Links between pixels of the output and of the input, each with its tap of the kernel. Pixels and taps are numbered
//! row by row. A tap that lies in the padding is not listed, so its zeros are not multiplied.

use super::Window;

#[derive(Clone, Debug)]
pub(super) struct Geometry {
    pub(super) samples: usize,
    pub(super) source_channels: usize,
    pub(super) target_channels: usize,
    pub(super) groups: usize,
    pub(super) source: [usize; 2],
    pub(super) target: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

/// A pixel, seen through a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// Its number among those in use.
    pub(super) tap: usize,
    pub(super) pixel: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Links {
    /// The start of each pixel's links, and the end of the last.
    starts: Vec<usize>,
    links: Vec<Link>,
}

impl Links {
    pub(super) fn of(&self, pixel: usize) -> &[Link] {
        &self.links[self.starts[pixel]..self.starts[pixel + 1]]
    }

    fn new(lists: &[Vec<Link>]) -> Self {
        let mut starts = vec![0];
        starts.extend(lists.iter().scan(0, |end, list| {
            *end += list.len();
            Some(*end)
        }));
        Self { starts, links: lists.concat() }
    }
}

impl Geometry {
    pub(super) fn new(input: [usize; 4], weight: [usize; 4], window: Window) -> Self {
        let [samples, channels, height, width] = input;
        let [targets, source_channels, rows, columns] = weight;
        let Window { stride, dilation, padding, groups } = window;
        let (kernel, source) = ([rows, columns], [height, width]);
        assert_eq!(
            channels,
            source_channels * groups,
            "channels of the input and of a convolution with {groups} groups"
        );
        assert_eq!(targets % groups, 0, "{groups} groups of {targets} channels");
        let target = [0, 1].map(|dim| {
            let padded = source[dim] + padding[dim].0 + padding[dim].1;
            let reach = dilation[dim] * (kernel[dim] - 1) + 1;
            assert!(
                padded >= reach,
                "a kernel that reaches over {reach} pixels and an input of {padded}"
            );
            (padded - reach) / stride[dim] + 1
        });
        Self {
            samples,
            source_channels,
            target_channels: targets / groups,
            groups,
            source,
            target,
            kernel,
            stride,
            padding: padding.map(|(begin, _)| begin),
            dilation,
        }
    }

    pub(super) fn source_pixels(&self) -> usize {
        self.source[0] * self.source[1]
    }

    pub(super) fn target_pixels(&self) -> usize {
        self.target[0] * self.target[1]
    }

    pub(super) fn kernel_taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// The taps in use, the links of output pixels, and the links of input pixels.
    pub(super) fn links(&self) -> (Vec<usize>, Links, Links) {
        let mut forward = vec![Vec::new(); self.target_pixels()];
        let mut backward = vec![Vec::new(); self.source_pixels()];
        let mut taps = Vec::new();
        for tap in 0..self.kernel_taps() {
            let place = [tap / self.kernel[1], tap % self.kernel[1]];
            let index = taps.len();
            let link = |pixel| Link { tap: index, pixel };
            let mut is_used = false;
            for (target, links) in forward.iter_mut().enumerate() {
                let at = [target / self.target[1], target % self.target[1]];
                if let Some(source) = self.seen(at, place) {
                    links.push(link(source));
                    backward[source].push(link(target));
                    is_used = true;
                }
            }
            if is_used {
                taps.push(tap);
            }
        }
        (taps, Links::new(&forward), Links::new(&backward))
    }

    /// The pixel of the input that one of the output sees through a tap.
    fn seen(&self, at: [usize; 2], place: [usize; 2]) -> Option<usize> {
        let along = |dim: usize| {
            let padded = at[dim] * self.stride[dim] + place[dim] * self.dilation[dim];
            let index = padded.checked_sub(self.padding[dim])?;
            (index < self.source[dim]).then_some(index)
        };
        Some(along(0)? * self.source[1] + along(1)?)
    }
}
