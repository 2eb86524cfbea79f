"""Trains a small model on all workers, as Kubeflow's guide for XGBoost does, and prints what they agree on."""

import os

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

task, workers = os.environ["DMLC_TASK_ID"], int(os.environ["DMLC_NUM_WORKER"])
name, port = os.environ["DMLC_TRACKER_URI"], int(os.environ["DMLC_TRACKER_PORT"])
tracker = None
if task == "0":
    tracker = RabitTracker(host_ip="0.0.0.0", n_workers=workers, port=port)
    tracker.start()
with collective.CommunicatorContext(dmlc_tracker_uri=name, dmlc_tracker_port=port, dmlc_task_id=task):
    total = collective.allreduce(np.array([int(task)]), collective.Op.SUM)[0]
    x = np.random.default_rng(int(task)).random((64, 4))
    data = xgboost.QuantileDMatrix(x, label=x[:, 0])
    model = xgboost.train({"tree_method": "hist", "nthread": 1}, data, num_boost_round=2)
    print(f"task {task}: {collective.get_world_size()} workers, sum {total}, {len(model.get_dump())} trees", flush=True)
if tracker:
    tracker.wait_for()
