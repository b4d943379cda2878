//! The sums of a table's gradient, written in CubeCL.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

/// Threads of a block.
pub(super) const UNITS: u32 = 256;

/// Marks that are looked at one by one only if one of them is set.
const GROUP: u32 = 32;

/// One block for each token. That of the first token of a row sums all of the row's.
#[cube(launch)]
pub(super) fn sum_rows<F: Float, I: Int>(
    gradient: &Tensor<F>,
    indices: &Tensor<I>,
    sums: &mut Tensor<F>,
    tokens: u32,
    #[comptime] width: u32,
    #[define(F, I)] _types: [ElemType; 2],
) {
    let own = CUBE_POS_X;
    let index = indices[own as usize];
    let mut marks = Shared::<[u32]>::new_slice(UNITS as usize);
    let mut groups = Shared::<[u32]>::new_slice((UNITS / GROUP) as usize);
    let unit = UNIT_POS;

    let mut is_later = 0u32;
    let mut earlier = unit;
    while earlier < own {
        if indices[earlier as usize] == index {
            is_later = 1;
        }
        earlier += UNITS;
    }
    marks[unit as usize] = is_later;
    sync_cube();
    let mut laters = 0u32;
    for other in 0..UNITS {
        laters += marks[other as usize];
    }
    sync_cube();
    if laters == 0 {
        let columns = comptime!(width.div_ceil(UNITS));
        let mut row = Array::<f32>::new(columns as usize);
        #[unroll]
        for column in 0..columns {
            row[column as usize] = 0.0;
        }
        let mut start = own / UNITS * UNITS;
        while start < tokens {
            let token = start + unit;
            let mut is_same = 0u32;
            if token >= own && token < tokens {
                is_same = u32::cast_from(indices[token as usize] == index);
            }
            marks[unit as usize] = is_same;
            sync_cube();
            if unit < UNITS / GROUP {
                let mut count = 0u32;
                for mark in 0..GROUP {
                    count += marks[(unit * GROUP + mark) as usize];
                }
                groups[unit as usize] = count;
            }
            sync_cube();
            for group in 0..UNITS / GROUP {
                if groups[group as usize] > 0 {
                    for mark in group * GROUP..(group + 1) * GROUP {
                        if marks[mark as usize] > 0 {
                            let place = (start + mark) as usize * width as usize;
                            #[unroll]
                            for column in 0..columns {
                                let own_column = column * UNITS + unit;
                                if own_column < width {
                                    row[column as usize] +=
                                        f32::cast_from(gradient[place + own_column as usize]);
                                }
                            }
                        }
                    }
                }
            }
            sync_cube();
            start += UNITS;
        }
        let place = usize::cast_from(index) * width as usize;
        #[unroll]
        for column in 0..columns {
            let own_column = column * UNITS + unit;
            if own_column < width {
                sums[place + own_column as usize] = F::cast_from(row[column as usize]);
            }
        }
    }
}
