//! Bounds that together reach every kind of step.

use super::bounds::{Bounds, Medium, Op};

const A: Op = Op::Put(0);
const B: Op = Op::Put(1);
const DEL: Op = Op::Delete(0);
const EXP: Op = Op::Expiring(0);

/// Everything, or, `reduced`, what a test run has time for.
pub fn all(_reduced: bool) -> Vec<Bounds> {
    let base = |name, medium, ops: &[(Op, u8)]| Bounds::new(name, medium, ops);
    use Medium::{Fence, Sync};
    vec![
        Bounds { collections: 2, failures: 1, ..base("collect", Fence, &[(A, 2), (DEL, 1)]) },
        Bounds { collections: 2, failures: 1, ..base("collect on files", Sync, &[(A, 2), (DEL, 1)]) },
        Bounds { collections: 2, failures: 1, kills: 1, segments: 3, slots: 2, ..base("two slots", Fence, &[(A, 2), (B, 1), (DEL, 1)]) },
        Bounds { collections: 1, failures: 1, ..base("revive on files", Sync, &[(A, 3), (DEL, 2)]) },
        Bounds { collections: 1, failures: 2, kills: 1, ..base("batches on files", Sync, &[(A, 2), (Op::Batch, 1), (DEL, 1)]) },
        Bounds { writers: 2, failures: 1, collections: 1, ..base("two writers", Fence, &[(A, 2), (DEL, 1)]) },
        Bounds { collections: 1, checkpoints: 1, failures: 1, ..base("checkpoint", Fence, &[(A, 2), (DEL, 1)]) },
        Bounds { collections: 2, checkpoints: 1, segments: 3, slots: 2, ..base("checkpoint two slots", Fence, &[(A, 2), (B, 1), (DEL, 1)]) },
        Bounds { collections: 1, checkpoints: 1, failures: 1, ..base("checkpoint files", Sync, &[(A, 2), (DEL, 1)]) },
        Bounds { collections: 1, checkpoints: 2, drops: 1, ..base("checkpoints", Fence, &[(A, 2), (DEL, 1)]) },
        Bounds { collections: 1, checkpoints: 1, failures: 1, ..base("expiry", Fence, &[(A, 1), (EXP, 1), (DEL, 1)]) },
        Bounds { collections: 2, snapshots: 1, reads: 1, ..base("readers", Fence, &[(A, 2), (DEL, 1)]) },
        Bounds { closes: 1, failures: 1, collections: 1, segments: 3, slots: 2, ..base("close", Fence, &[(A, 2), (B, 1), (DEL, 1)]) },
    ]
}
