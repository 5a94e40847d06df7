"""Evaluate a model of scikit-learn on the handwritten digits that come with it.

python examples/sklearn_model.py
"""

from disteval import Task, get_dist_backend
from disteval.metrics import Accuracy, CalibrationError, ConfusionMatrix
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def task() -> Task:
    """Return the task: a logistic regression, fitted on half of the digits."""
    train, test, train_labels, test_labels = train_test_split(
        *load_digits(return_X_y=True), test_size=0.5, random_state=0
    )
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    model.fit(train, train_labels)
    return Task(
        samples=(test, test_labels),
        predict=model.predict_proba,
        metrics={
            "accuracy": Accuracy(topk=(1, 2)),
            "calibration": CalibrationError(),
            "confusion": ConfusionMatrix(10),
        },
        batch_size=64,
    )


if __name__ == "__main__":
    print(task().evaluate(get_dist_backend()).metrics)
