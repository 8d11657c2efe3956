"""Opens a page in the browser of Qt, clicks on a head, and prints its name; writes a picture of the page."""

import os
import sys

os.environ |= {
    "QT_QPA_PLATFORM": "offscreen",
    "QTWEBENGINE_DISABLE_SANDBOX": "1",
    "QTWEBENGINE_CHROMIUM_FLAGS": "--no-sandbox --disable-gpu",
}

from PySide6.QtCore import QTimer, QUrl
from PySide6.QtWebEngineWidgets import QWebEngineView
from PySide6.QtWidgets import QApplication

CLICK = """
var heads = document.querySelectorAll('.heads a'), head = heads[3];
var before = document.querySelector('.lines').innerHTML;
head.click();
var lines = document.querySelector('.lines');
var name = document.querySelector('.name').textContent;
name + '\\n' + (lines.querySelectorAll('path').length === head.querySelectorAll('path').length);
"""


def main(page: str, picture: str, height: int = 1000) -> None:
    """Opens the page, clicks and writes the picture."""
    application = QApplication(sys.argv[:1])
    view = QWebEngineView()
    view.resize(1200, height)

    def finish(result):
        print(result, flush=True)
        QTimer.singleShot(1000, lambda: (view.grab().save(picture), application.quit()))

    view.loadFinished.connect(lambda _: view.page().runJavaScript(CLICK, 0, finish))
    view.load(QUrl.fromLocalFile(os.path.abspath(page)))
    view.show()
    application.exec()


if __name__ == "__main__":
    main(*sys.argv[1:3])
